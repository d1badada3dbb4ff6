// Sockets of one host that carry whole messages and descriptors (SOCK_SEQPACKET on a path), and
// what the kernel says about who is at the other end. Every descriptor made or received here is
// non-blocking where that has a meaning and closed on exec.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::data_plane::shm {

// A bound and listening socket; its path goes away with it.
class UnixListener {
 public:
  UnixListener(UnixListener&& other) noexcept;
  UnixListener& operator=(UnixListener&& other) noexcept;
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;
  ~UnixListener();

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  // The next connection, nothing while there is none.
  Result<std::optional<Fd>> accept();

 private:
  friend Result<UnixListener> listen_unix(const std::string& folder);
  UnixListener(Fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Fd fd_;
  std::string path_;
};

// Listens on <folder>/kvferry-<16 random hexadecimal digits>.sock, for this user alone. The folder
// must be one that open_own_folder() accepts.
inline constexpr std::size_t kSocketDigits = 16;
inline constexpr std::string_view kSocketEnd = ".sock";
Result<UnixListener> listen_unix(const std::string& folder);

// Connects at once or not at all; kPeerUnreachable when nobody listens or too many wait already.
Result<Fd> connect_unix(const std::string& path);

// As of the time of connect or listen, told by the kernel.
struct PeerCredentials {
  pid_t pid = 0;  // 0: the process is not visible here, it lives in another pid namespace
  uid_t uid = 0;
  gid_t gid = 0;
};
Result<PeerCredentials> peer_credentials(int fd);

// Sends one message, whole or not at all; false while the socket's buffer is full. At most
// kMaxMessageFds descriptors, which stay the caller's; bytes must not be empty, since an empty
// message can't be told from the end of the connection.
inline constexpr std::size_t kMaxMessageFds = 253;  // the kernel's limit
Result<bool> send_message(int fd, std::span<const std::uint8_t> bytes,
                          std::span<const int> fds = {});

struct Received {
  std::size_t size = 0;    // 0: the other end has closed
  std::vector<Fd> fds;     // in the order in which they were sent
  bool truncated = false;  // the message was longer than the buffer; its rest is gone
};
// Takes one message; nothing while there is none. More than max_fds descriptors are refused as
// malformed, descriptors that this process has no room for as a failure of its own limit. In both
// cases all that came with the message are closed.
Result<std::optional<Received>> receive_message(int fd, std::span<std::uint8_t> buffer,
                                                std::size_t max_fds);

// Becomes readable when the process ends. A number may name a new process once its old one is gone
// and reaped: the caller checks, after this, that the connection that named it is still open.
Result<Fd> open_pidfd(pid_t pid);

}  // namespace kvferry::data_plane::shm
