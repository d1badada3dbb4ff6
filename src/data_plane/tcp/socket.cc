#include "data_plane/tcp/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

namespace kvferry::data_plane::tcp {
namespace {

constexpr int kBacklog = 256;

struct AddressListDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListDeleter>;

Result<AddressList> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return fail(FailureCode::kInvalidArgument,
                "data host '" + host + "' is not an address: " + gai_strerror(error));
  }
  return AddressList(list);
}

std::string host_text(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  if (getnameinfo(address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return host;
}

bool is_any_address(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

Result<Listener> listen_on(const std::string& host, std::uint16_t port) {
  auto list = look_up(host, port, AI_PASSIVE);
  if (!list) return tl::unexpected(list.error());
  const addrinfo& first = **list;
  Listener listener;
  listener.fd = Fd(::socket(first.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.fd.is_open()) return fail(FailureCode::kOperatingSystem, errno_text("socket"));
  const int one = 1;
  ::setsockopt(listener.fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const std::string where = " (data plane, " + host + " port " + std::to_string(port) + ")";
  if (::bind(listener.fd.get(), first.ai_addr, first.ai_addrlen) != 0) {
    return fail(FailureCode::kOperatingSystem, errno_text("bind") + where);
  }
  if (::listen(listener.fd.get(), kBacklog) != 0) {
    return fail(FailureCode::kOperatingSystem, errno_text("listen") + where);
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return fail(FailureCode::kOperatingSystem, errno_text("getsockname") + where);
  }
  listener.host = host_text(reinterpret_cast<sockaddr*>(&bound), length);
  listener.is_wildcard = is_any_address(bound);
  listener.port =
      ntohs(bound.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(bound).sin_port
                                       : reinterpret_cast<sockaddr_in6&>(bound).sin6_port);
  return listener;
}

Result<std::string> numeric_host(const std::string& host) {
  auto list = look_up(host, 0, 0);
  if (!list) return tl::unexpected(list.error());
  return host_text((*list)->ai_addr, (*list)->ai_addrlen);
}

Result<Fd> start_connect(const std::string& host, std::uint16_t port) {
  auto list = look_up(host, port, AI_NUMERICHOST);
  if (!list) return tl::unexpected(list.error());
  Fd fd(::socket((*list)->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return fail(FailureCode::kOperatingSystem, errno_text("socket"));
  if (::connect(fd.get(), (*list)->ai_addr, (*list)->ai_addrlen) != 0 && errno != EINPROGRESS) {
    return fail(FailureCode::kPeerUnreachable, errno_text("connect"), FailureWhere::kPath);
  }
  return fd;
}

std::string connect_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return error == 0 ? std::string() : "connect: " + std::generic_category().message(error);
}

void set_lane_options(int fd, std::uint32_t user_timeout_ms) {
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
}

}  // namespace kvferry::data_plane::tcp
