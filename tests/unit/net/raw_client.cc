#include "raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "net/endpoint.h"

namespace kvferry::net {
namespace {

constexpr int kPatienceMs = 10'000;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool readable(int fd) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, kPatienceMs) > 0;
}

}  // namespace

RawClient::RawClient(const std::string& address) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in server = loopback(parse_endpoint(address)->port);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

RawClient::~RawClient() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

bool RawClient::send(std::string_view data) {
  while (!data.empty()) {
    const auto sent = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    data.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void RawClient::half_close() { ::shutdown(fd_, SHUT_WR); }

bool RawClient::read_some() {
  char piece[4096];
  if (!readable(fd_)) {
    return false;
  }
  const auto got = ::recv(fd_, piece, sizeof piece, 0);
  if (got <= 0) {
    return false;
  }
  received_.append(piece, static_cast<std::size_t>(got));
  return true;
}

std::string RawClient::read_until(std::string_view text) {
  while (text.empty() || received_.find(text) == std::string::npos) {
    if (!read_some()) {
      return text.empty() ? received_ : std::string();
    }
  }
  return received_;
}

bool RawClient::at_end() {
  char piece[4096];
  while (readable(fd_)) {
    if (::recv(fd_, piece, sizeof piece, 0) <= 0) {
      return true;
    }
  }
  return false;
}

RawListener::RawListener() {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  ::bind(fd_, reinterpret_cast<sockaddr*>(&address), length);
  ::listen(fd_, 16);
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
  port_ = ntohs(address.sin_port);
}

RawListener::~RawListener() {
  if (kept_ >= 0) {
    ::close(kept_);
  }
  ::close(fd_);
}

std::string RawListener::address() const { return format_endpoint("127.0.0.1", port_); }

void RawListener::serve_once(std::string_view answer, bool close_after) {
  if (!readable(fd_)) {
    return;
  }
  const int connection = ::accept(fd_, nullptr, nullptr);
  std::string request;
  char piece[4096];
  while (request.find("\r\n\r\n") == std::string::npos && readable(connection)) {
    const auto got = ::recv(connection, piece, sizeof piece, 0);
    if (got <= 0) {
      break;
    }
    request.append(piece, static_cast<std::size_t>(got));
  }
  (void)::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
  if (close_after) {
    ::close(connection);
  } else {
    kept_ = connection;
  }
}

bool RawListener::has_pending_connection() const {
  pollfd ready{fd_, POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
}

void RawListener::drop_kept_at_request(std::chrono::milliseconds after) {
  char piece[4096];
  if (kept_ >= 0 && readable(kept_)) {
    // Read in full, so that the close is an orderly end and not a reset.
    (void)::recv(kept_, piece, sizeof piece, 0);
    std::this_thread::sleep_for(after);
  }
  ::close(kept_);
  kept_ = -1;
}

}  // namespace kvferry::net
