#include "serve/wake_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace kvferry::serve {

WakeFd::WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
}

WakeFd::~WakeFd() { close(fd_); }

void WakeFd::raise() noexcept {
  const std::uint64_t one = 1;
  // A full counter is raised already, so the outcome does not matter.
  [[maybe_unused]] const auto written = write(fd_, &one, sizeof one);
}

void WakeFd::lower() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto read_bytes = read(fd_, &count, sizeof count);
}

}  // namespace kvferry::serve
