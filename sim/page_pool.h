// What a caller's allocator knows of one kind of numbered things (pages, aux slots, state slots):
// which are free, and who has the others. The lowest free ones go first, so that they are used
// again at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvferry::sim {

class PagePool {
 public:
  using Holder = std::uint64_t;  // never 0

  PagePool() = default;
  explicit PagePool(std::uint32_t count) : holders_(count, 0), free_(count) {}

  std::size_t size() const { return holders_.size(); }
  std::size_t free() const { return free_; }
  Holder holder(std::uint32_t index) const { return index < size() ? holders_[index] : 0; }

  // All or nothing.
  std::optional<std::vector<std::uint32_t>> take(std::size_t count, Holder holder) {
    if (free_ < count) {
      return std::nullopt;
    }
    std::vector<std::uint32_t> taken;
    taken.reserve(count);
    for (std::uint32_t index = 0; taken.size() < count; ++index) {
      if (holders_[index] == 0) {
        holders_[index] = holder;
        taken.push_back(index);
      }
    }
    free_ -= count;
    return taken;
  }
  // False when this holder does not have it.
  bool give_back(std::uint32_t index, Holder holder) {
    if (this->holder(index) != holder || holder == 0) {
      return false;
    }
    holders_[index] = 0;
    ++free_;
    return true;
  }
  std::vector<std::uint32_t> taken() const {
    std::vector<std::uint32_t> out;
    for (std::uint32_t index = 0; index < size(); ++index) {
      if (holders_[index] != 0) {
        out.push_back(index);
      }
    }
    return out;
  }

 private:
  std::vector<Holder> holders_;  // by index; 0: free
  std::size_t free_ = 0;
};

}  // namespace kvferry::sim
