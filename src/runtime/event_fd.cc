#include "runtime/event_fd.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace kvferry::runtime {

Result<EventFd> EventFd::make() {
  const int fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return fail(FailureCode::kOperatingSystem, fmt::format("eventfd: {}", std::strerror(errno)));
  }
  return EventFd(fd);
}

EventFd::EventFd(EventFd&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), raised_(other.raised_.load()) {}

EventFd::~EventFd() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void EventFd::raise() noexcept {
  if (raised_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  const std::uint64_t one = 1;
  // Fails only at a count of 2^64 - 2, where the descriptor is readable in any case.
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void EventFd::lower() noexcept {
  // Read first: with the flag down before, a raise in between would have its count read away while
  // the flag says that it is still there.
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(fd_, &count, sizeof count);
  raised_.exchange(false, std::memory_order_acq_rel);
}

}  // namespace kvferry::runtime
