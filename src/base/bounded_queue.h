// Many producers, one consumer; a full queue is a value, never a wait. The consumer swaps the whole
// batch out, so producers hold the lock only for one push.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace kvferry {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) {}

  enum class Push { kFull, kFirst, kMore };  // kFirst: the queue was empty, wake the consumer

  Push push(T&& item) {
    std::lock_guard lock(mutex_);
    if (items_.size() >= capacity_) {
      return Push::kFull;
    }
    items_.push_back(std::move(item));
    return items_.size() == 1 ? Push::kFirst : Push::kMore;
  }

  // Replaces batch by everything queued, in order of arrival.
  void drain(std::vector<T>& batch) {
    batch.clear();
    std::lock_guard lock(mutex_);
    items_.swap(batch);
  }

  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<T> items_;
};

}  // namespace kvferry
