// Pages on their way back to the caller, and the descriptor that tells a sleeping scheduler of them
// and of changed statuses.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "kvferry/kv_manager.h"
#include "runtime/event_fd.h"

namespace kvferry::runtime {

// Threads: any. Bounded by what the caller gave: each page is in it once at most.
class ReleaseQueue {
 public:
  explicit ReleaseQueue(EventFd signal) : signal_(std::move(signal)) {}

  void push(ReleasedPages released) {
    std::lock_guard lock(mutex_);
    released_.push_back(std::move(released));
  }
  std::vector<ReleasedPages> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(released_, {});
  }

  int fd() const { return signal_.fd(); }
  void raise() noexcept { signal_.raise(); }
  // Stays readable while pages wait to be taken.
  void lower() {
    signal_.lower();
    std::lock_guard lock(mutex_);
    if (!released_.empty()) {
      signal_.raise();
    }
  }

 private:
  std::mutex mutex_;
  std::vector<ReleasedPages> released_;
  EventFd signal_;
};

}  // namespace kvferry::runtime
