// Which handles have a new status, for schedulers with too many rooms to look at each in every
// step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvferry::runtime {

// Threads: any. Notes nothing until somebody asks, and no more than its limit: behind that whoever
// asks must look at all handles.
class ChangeList {
 public:
  explicit ChangeList(std::size_t limit) : limit_(limit) {}

  // After the statuses have changed.
  void add(std::span<const std::uint64_t> ids) {
    std::lock_guard lock(mutex_);
    if (ids_.size() + ids.size() > limit_) {
      is_complete_ = false;
      ids_.clear();
    }
    if (is_complete_) {
      ids_.insert(ids_.end(), ids.begin(), ids.end());
    }
  }
  // Every handle may have changed.
  void add_all() {
    std::lock_guard lock(mutex_);
    is_complete_ = false;
    ids_.clear();
  }
  // In order of change, some perhaps more than once; nullopt: look at all.
  std::optional<std::vector<std::uint64_t>> take() {
    std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> ids = std::exchange(ids_, {});
    return std::exchange(is_complete_, true) ? std::optional(std::move(ids)) : std::nullopt;
  }

 private:
  const std::size_t limit_;
  std::mutex mutex_;
  std::vector<std::uint64_t> ids_;
  bool is_complete_ = false;
};

}  // namespace kvferry::runtime
