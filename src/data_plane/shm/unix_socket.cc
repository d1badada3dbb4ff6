#include "data_plane/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "data_plane/shm/socket_folder.h"

#ifndef __NR_pidfd_open
#define __NR_pidfd_open 434  // Linux 5.3, the same number on every architecture
#endif

namespace kvferry::data_plane::shm {
namespace {

constexpr int kBacklog = 256;

tl::unexpected<Failure> system_failure(const char* call, const std::string& path) {
  return fail(FailureCode::kOperatingSystem, errno_text(call) + " (unix socket, " + path + ")");
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  constexpr std::size_t kMaxPathBytes = sizeof address.sun_path - 1;
  if (path.empty() || path.size() > kMaxPathBytes) {
    return fail(FailureCode::kInvalidArgument,
                "unix socket: the path " + path + " has " + std::to_string(path.size()) +
                    " bytes where the system allows 1 to " + std::to_string(kMaxPathBytes) +
                    "; choose a shorter folder");
  }
  if (path.find('\0') != std::string::npos) {
    return fail(FailureCode::kInvalidArgument, "unix socket: the path has a zero byte");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Fd open_socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

// Takes the descriptors out of a message, so that every one of them has an owner.
std::vector<Fd> take_fds(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxMessageFds * sizeof(int));
struct ControlBuffer {
  alignas(cmsghdr) std::array<std::byte, kControlBytes> bytes{};
};

}  // namespace

UnixListener::UnixListener(UnixListener&& other) noexcept
    : fd_(std::move(other.fd_)), path_(std::exchange(other.path_, {})) {}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

UnixListener::~UnixListener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<std::optional<Fd>> UnixListener::accept() {
  Fd accepted(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted.is_open()) return std::optional<Fd>(std::move(accepted));
  if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return std::optional<Fd>();
  return system_failure("accept4", path_);
}

Result<UnixListener> listen_unix(const std::string& folder) {
  if (auto own = open_own_folder(folder); !own) return tl::unexpected(own.error());
  const std::string path = folder + "/" + own_name(kSocketDigits, kSocketEnd);
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  Fd fd = open_socket();
  if (!fd.is_open()) return system_failure("socket", path);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return system_failure("bind", path);
  }
  UnixListener listener(std::move(fd), path);  // from here on the path is unlinked on failure
  // Before listen(), so that nobody else gets in between.
  if (::chmod(path.c_str(), 0600) != 0) return system_failure("chmod", path);
  if (::listen(listener.fd(), kBacklog) != 0) return system_failure("listen", path);
  return listener;
}

Result<Fd> connect_unix(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return tl::unexpected(address.error());
  Fd fd = open_socket();
  if (!fd.is_open()) return system_failure("socket", path);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    const std::string why = errno == EAGAIN ? "connect: too many connections wait there already"
                                            : errno_text("connect");
    return fail(FailureCode::kPeerUnreachable, why + " (unix socket, " + path + ")",
                FailureWhere::kPath);
  }
  return fd;
}

Result<PeerCredentials> peer_credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return fail(FailureCode::kOperatingSystem, errno_text("getsockopt(SO_PEERCRED)"));
  }
  return PeerCredentials{peer.pid, peer.uid, peer.gid};
}

Result<bool> send_message(int fd, std::span<const std::uint8_t> bytes, std::span<const int> fds) {
  if (bytes.empty() || fds.size() > kMaxMessageFds) {
    return fail(FailureCode::kInvalidArgument,
                "unix socket: a message of " + std::to_string(bytes.size()) + " bytes and " +
                    std::to_string(fds.size()) + " descriptors can't be sent");
  }
  // sendmsg only reads, but its parts are not const.
  iovec part{const_cast<std::uint8_t*>(bytes.data()), bytes.size()};  // NOLINT(*-const-cast)
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return false;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return fail(FailureCode::kPeerLost, errno_text("sendmsg"), FailureWhere::kPath);
    }
    return fail(FailureCode::kOperatingSystem, errno_text("sendmsg"));
  }
}

Result<std::optional<Received>> receive_message(int fd, std::span<std::uint8_t> buffer,
                                                std::size_t max_fds) {
  iovec part{buffer.data(), buffer.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  // Exactly this many: the space rounded up would let one more in.
  if (max_fds > kMaxMessageFds) max_fds = kMaxMessageFds;
  message.msg_controllen = CMSG_LEN(max_fds * sizeof(int));
  ssize_t size = 0;
  do {
    size = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0) {
    if (errno == EAGAIN) return std::optional<Received>();
    if (errno == ECONNRESET || errno == ENOTCONN) {
      return fail(FailureCode::kPeerLost, errno_text("recvmsg"), FailureWhere::kPath);
    }
    return fail(FailureCode::kOperatingSystem, errno_text("recvmsg"));
  }
  std::vector<Fd> fds = take_fds(message);
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    // The kernel stops at the buffer's end or where this process may open no more files; only the
    // first is the sender's fault.
    if (fds.size() < max_fds) {
      return fail(FailureCode::kOperatingSystem,
                  "recvmsg: descriptors that came with a message could not be opened here (see "
                  "RLIMIT_NOFILE)");
    }
    return fail(FailureCode::kMalformed,
                "a message came with more than " + std::to_string(max_fds) + " descriptors",
                FailureWhere::kPeer);
  }
  return Received{static_cast<std::size_t>(size), std::move(fds),
                  (message.msg_flags & MSG_TRUNC) != 0};
}

Result<Fd> open_pidfd(pid_t pid) {
  if (pid <= 0) {
    return fail(FailureCode::kInvalidArgument,
                "pidfd_open: process " + std::to_string(pid) +
                    " has no number here; it lives in another pid namespace");
  }
  Fd fd(static_cast<int>(::syscall(__NR_pidfd_open, pid, 0)));
  if (fd.is_open()) return fd;
  const std::string which = " (process " + std::to_string(pid) + ")";
  if (errno == ESRCH) {
    return fail(FailureCode::kPeerLost, errno_text("pidfd_open") + which, FailureWhere::kPeer);
  }
  return fail(FailureCode::kOperatingSystem, errno_text("pidfd_open") + which);
}

}  // namespace kvferry::data_plane::shm
