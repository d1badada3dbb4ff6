#include "data_plane/fd.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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

void raise_event(const Fd& event) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event.get(), &one, sizeof one);
}

void clear_event(const Fd& event) {
  std::uint64_t ignored = 0;
  [[maybe_unused]] const auto got = ::read(event.get(), &ignored, sizeof ignored);
}

std::string errno_text(const char* call) {
  return std::string(call) + ": " + std::generic_category().message(errno);
}

}  // namespace kvferry::data_plane
