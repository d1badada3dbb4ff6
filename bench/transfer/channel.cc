#include "bench/transfer/channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace kvferry::bench {
namespace {

constexpr std::size_t kMaxText = 8U << 10;

struct Head {
  Kind kind;
  Numbers numbers;
};

auto failed(const char* call) {
  return fail(FailureCode::kOperatingSystem, data_plane::errno_text(call));
}

}  // namespace

Result<std::pair<Channel, Channel>> Channel::make_pair() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return failed("socketpair");
  }
  return std::pair(Channel(Fd(fds[0])), Channel(Fd(fds[1])));
}

Status Channel::send(const Message& message) {
  Head head{message.kind, message.numbers};
  std::array<iovec, 2> parts = {iovec{&head, sizeof head},
                                iovec{const_cast<char*>(message.text.data()), message.text.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  if (message.fd.is_open()) {
    packet.msg_control = control.data();
    packet.msg_controllen = control.size();
    cmsghdr* item = CMSG_FIRSTHDR(&packet);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = message.fd.get();
    std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
  }
  while (::sendmsg(fd_.get(), &packet, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return failed("sendmsg between the bench's processes");
  }
  return {};
}

Result<std::optional<Message>> Channel::receive(std::chrono::milliseconds patience) {
  pollfd waiting{fd_.get(), POLLIN, 0};
  if (::poll(&waiting, 1, static_cast<int>(patience.count())) <= 0) return std::nullopt;
  Head head{};
  std::vector<char> text(kMaxText);
  std::array<iovec, 2> parts = {iovec{&head, sizeof head}, iovec{text.data(), text.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  packet.msg_control = control.data();
  packet.msg_controllen = control.size();
  const ssize_t count = ::recvmsg(fd_.get(), &packet, MSG_CMSG_CLOEXEC);
  if (count < 0 && errno == ECONNRESET) {
    return fail(FailureCode::kPeerLost, "another process of the bench has ended");
  }
  if (count < 0) return failed("recvmsg between the bench's processes");
  if (static_cast<std::size_t>(count) < sizeof head) {
    return fail(FailureCode::kPeerLost, "another process of the bench has ended");
  }
  Message message{head.kind, head.numbers,
                  std::string(text.data(), static_cast<std::size_t>(count) - sizeof head), Fd()};
  const cmsghdr* item = CMSG_FIRSTHDR(&packet);
  if (item != nullptr && item->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(item), sizeof fd);
    message.fd = Fd(fd);
  }
  return message;
}

Result<Message> Channel::expect(Kind kind, std::chrono::milliseconds patience) {
  auto received = receive(patience);
  if (!received) return tl::unexpected(received.error());
  if (!*received) {
    return fail(
        FailureCode::kOperatingSystem,
        fmt::format("another process of the bench did not answer within {} ms", patience.count()));
  }
  Message& message = **received;
  if (message.kind == Kind::kFailed) return fail(FailureCode::kOperatingSystem, message.text);
  if (message.kind != kind) {
    return fail(FailureCode::kWrongState, fmt::format("a message of kind {} came instead of {}",
                                                      static_cast<std::uint32_t>(message.kind),
                                                      static_cast<std::uint32_t>(kind)));
  }
  return std::move(message);
}

}  // namespace kvferry::bench
