#include "data_plane/fd.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace kvferry::data_plane {

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Fd::abort() {
  if (fd_ < 0) return;
  const linger now{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  reset();
}

std::string errno_text(const char* call) {
  return std::string(call) + ": " + std::generic_category().message(errno);
}

}  // namespace kvferry::data_plane
