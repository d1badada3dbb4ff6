// A blocking client socket with a short patience, for whoever does not speak the protocol.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <span>
#include <string>

namespace kvferry::hostile {

class RawSocket {
 public:
  // endpoint: IPv4:port.
  static RawSocket tcp(const std::string& endpoint) {
    const std::size_t colon = endpoint.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, endpoint.substr(0, colon).c_str(), &address.sin_addr);
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(colon + 1))));
    return RawSocket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                     reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  // Of whole messages.
  static RawSocket unix_messages(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    return RawSocket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                     reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  ~RawSocket() {
    if (fd_ >= 0) ::close(fd_);
  }

  bool is_open() const { return fd_ >= 0; }
  bool send(std::span<const std::uint8_t> bytes) const {
    return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  void finish_sending() const { ::shutdown(fd_, SHUT_WR); }
  // Up to the first bytes of an answer, or its absence; empty when the other end closed or nothing
  // came.
  std::string receive() const {
    char buffer[4'096];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    return got > 0 ? std::string(buffer, static_cast<std::size_t>(got)) : std::string();
  }
  void reset_on_close() const {
    const linger at_once{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

 private:
  RawSocket(int fd, const sockaddr* address, socklen_t length) : fd_(fd) {
    const timeval patience{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(fd_, address, length) != 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  int fd_ = -1;
};

}  // namespace kvferry::hostile
