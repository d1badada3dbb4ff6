// An eventfd with a flag beside it, so that raising it again and again costs one system call.
#pragma once

#include <atomic>

#include "kvferry/status.h"

namespace kvferry::runtime {

// Threads: any thread raises; one thread at a time lowers. Whoever lowers looks at what the raisers
// announced afterwards, so that nothing announced before is missed.
class EventFd {
 public:
  static Result<EventFd> make();
  EventFd(EventFd&& other) noexcept;
  EventFd& operator=(EventFd&&) = delete;
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  ~EventFd();

  int fd() const { return fd_; }
  void raise() noexcept;
  void lower() noexcept;

 private:
  explicit EventFd(int fd) : fd_(fd) {}
  int fd_;
  std::atomic<bool> raised_{false};
};

}  // namespace kvferry::runtime
