#include "net/connect_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace kvferry::net {

ConnectProbe::~ConnectProbe() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

std::optional<bool> ConnectProbe::start(const std::string& host, std::uint16_t port) {
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  const sockaddr* address = nullptr;
  socklen_t length = 0;
  const std::string literal = host == "localhost" ? "127.0.0.1" : host;
  if (inet_pton(AF_INET, literal.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    address = reinterpret_cast<const sockaddr*>(&v4);
    length = sizeof v4;
  } else if (inet_pton(AF_INET6, literal.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    address = reinterpret_cast<const sockaddr*>(&v6);
    length = sizeof v6;
  } else {
    return false;
  }
  fd_ = ::socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) {
    return false;
  }
  // One retransmission: the kernel gives up after three seconds and no timer is needed here.
  const int attempts = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_SYNCNT, &attempts, sizeof attempts);
  if (::connect(fd_, address, length) == 0) {
    return false;
  }
  if (errno == EINPROGRESS) {
    return std::nullopt;
  }
  return errno == ECONNREFUSED;
}

bool ConnectProbe::refused() const {
  int error = 0;
  socklen_t length = sizeof error;
  return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNREFUSED;
}

}  // namespace kvferry::net
