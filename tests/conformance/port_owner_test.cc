// Who listens at a port, asked about real sockets of processes of their own.
#include "data_plane/process_vm/port_owner.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>

namespace kvferry::data_plane {
namespace {

using ::testing::HasSubstr;

struct Listening {
  int fd = -1;
  std::uint16_t port = 0;  // 0: it could not be bound
};

Listening listen_at(const char* ip, std::uint16_t port, bool shares_port = false) {
  sockaddr_storage address{};
  socklen_t length = sizeof(sockaddr_in);
  const bool is_v6 = std::string_view(ip).find(':') != std::string_view::npos;
  if (is_v6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    ::inet_pton(AF_INET6, ip, &v6.sin6_addr);
    length = sizeof v6;
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    ::inet_pton(AF_INET, ip, &v4.sin_addr);
  }
  Listening out{::socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0), 0};
  const int on = 1;
  ::setsockopt(out.fd, SOL_SOCKET, shares_port ? SO_REUSEPORT : SO_REUSEADDR, &on, sizeof on);
  if (::bind(out.fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(out.fd, 4) != 0) {
    return out;
  }
  ::getsockname(out.fd, reinterpret_cast<sockaddr*>(&address), &length);
  out.port = ntohs(is_v6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                         : reinterpret_cast<sockaddr_in&>(address).sin_port);
  return out;
}

// A process that listens until it is ended.
class Owner {
 public:
  explicit Owner(const char* ip, std::uint16_t wanted = 0, uid_t user = ::geteuid()) {
    std::array<int, 2> tell{};
    EXPECT_EQ(::pipe(tell.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const bool is_user = user == ::geteuid() || ::setuid(user) == 0;
      const Listening listening = is_user ? listen_at(ip, wanted) : Listening{};
      const auto written = ::write(tell[1], &listening.port, sizeof listening.port);
      for (;;) {
        ::pause();
      }
      ::_exit(written == sizeof listening.port ? 0 : 1);
    }
    EXPECT_EQ(::read(tell[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
    ::close(tell[0]);
    ::close(tell[1]);
  }
  ~Owner() { end(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  void end() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  pid_t pid() const { return pid_; }
  std::uint16_t port() const { return port_; }

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
};

std::string why_not(PortOwners& owners, const std::string& ip, std::uint16_t port) {
  const Result<ProcessName> found = owners.find(ip, port);
  return found ? "found" : found.error().what;
}

TEST(PortOwner, IsTheProcessThatListens) {
  Owner owner("127.0.0.1");
  PortOwners owners;
  for (int i = 0; i < 2; ++i) {  // the second time it is remembered
    const Result<ProcessName> found = owners.find("127.0.0.1", owner.port());
    ASSERT_TRUE(found) << found.error().what;
    EXPECT_EQ(*found, *name_process(owner.pid()));
  }
}

TEST(PortOwner, OfIpv6AsWell) {
  Owner owner("::1");
  if (owner.port() == 0) {
    GTEST_SKIP() << "this host has no ::1";
  }
  PortOwners owners;
  const Result<ProcessName> found = owners.find("::1", owner.port());
  ASSERT_TRUE(found) << found.error().what;
  EXPECT_EQ(found->pid, owner.pid());
  EXPECT_THAT(why_not(owners, "127.0.0.1", owner.port()), HasSubstr("nobody"));
}

// A wildcard says nothing of an address: that of another host would name the process here.
TEST(PortOwner, IsNobodyUnlessTheAddressIsTheOneThatIsBound) {
  Owner everywhere("0.0.0.0");
  Owner here("127.0.0.1");
  PortOwners owners;
  EXPECT_THAT(why_not(owners, "127.0.0.1", everywhere.port()), HasSubstr("nobody on this host"));
  EXPECT_THAT(why_not(owners, "10.1.2.3", everywhere.port()), HasSubstr("nobody on this host"));
  EXPECT_THAT(why_not(owners, "127.0.0.2", here.port()), HasSubstr("nobody on this host"));
  EXPECT_THAT(why_not(owners, "localhost", here.port()), HasSubstr("no numeric address"));
}

TEST(PortOwner, AConnectionIsNoListener) {
  const Listening server = listen_at("127.0.0.1", 0);
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  sockaddr_in own{};
  socklen_t length = sizeof own;
  ::getsockname(client, reinterpret_cast<sockaddr*>(&own), &length);
  PortOwners owners;
  EXPECT_THAT(why_not(owners, "127.0.0.1", ntohs(own.sin_port)), HasSubstr("nobody"));
  ::close(client);
  ::close(server.fd);
}

TEST(PortOwner, OfTwoProcessesWithTheSocketIsNone) {
  const Listening shared = listen_at("127.0.0.1", 0);
  Owner other("127.0.0.1");  // it has inherited the one above
  PortOwners owners;
  EXPECT_THAT(why_not(owners, "127.0.0.1", shared.port), HasSubstr("both listen"));
  ::close(shared.fd);
  const Result<ProcessName> found = owners.find("127.0.0.1", shared.port);
  ASSERT_TRUE(found) << found.error().what;
  EXPECT_EQ(found->pid, other.pid());
}

TEST(PortOwner, OfTwoSocketsAtAPortIsNone) {
  const Listening first = listen_at("127.0.0.1", 0, true);
  const Listening second = listen_at("127.0.0.1", first.port, true);
  ASSERT_EQ(second.port, first.port);
  PortOwners owners;
  EXPECT_THAT(why_not(owners, "127.0.0.1", first.port), HasSubstr("several sockets"));
  ::close(first.fd);
  ::close(second.fd);
}

TEST(PortOwner, IsOfThisUserOrNone) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can start a process of another user";
  }
  constexpr uid_t kNobody = 65'534;
  Owner other("127.0.0.1", 0, kNobody);
  ASSERT_NE(other.port(), 0);
  PortOwners owners;
  EXPECT_THAT(why_not(owners, "127.0.0.1", other.port()), HasSubstr("user 65534 listens"));
}

TEST(PortOwner, IsAnotherAfterARestart) {
  auto first = std::make_unique<Owner>("127.0.0.1");
  const std::uint16_t port = first->port();
  PortOwners owners;
  ASSERT_TRUE(owners.find("127.0.0.1", port));
  first->end();
  EXPECT_THAT(why_not(owners, "127.0.0.1", port), HasSubstr("nobody"));
  Owner second("127.0.0.1", port);
  ASSERT_EQ(second.port(), port);
  const Result<ProcessName> found = owners.find("127.0.0.1", port);
  ASSERT_TRUE(found) << found.error().what;
  EXPECT_EQ(found->pid, second.pid());
}

}  // namespace
}  // namespace kvferry::data_plane
