// An eventfd that wakes a scheduler. Shared, because a client's disconnect may come after the
// scheduler is gone.
#pragma once

#include <memory>

namespace kvferry::serve {

class WakeFd {
 public:
  WakeFd();
  ~WakeFd();
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;

  void raise() noexcept;  // any thread
  void lower() noexcept;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace kvferry::serve
