// The references' blocks: the pool cut into blocks of one size, each once per pass, scattered; and
// the check of what was copied.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/transfer/block.h"
#include "bench/transfer/engine.h"

namespace kvferry::bench {

class FlatOrder {
 public:
  FlatOrder() = default;
  explicit FlatOrder(const Block& block)
      : block_bytes_(block.page_bytes), order_(scattered_order(block.flat_count())) {}

  struct Copy {
    std::uint32_t source;  // block numbers
    std::uint32_t target;
  };
  Copy next() {
    if (at_ == order_.size()) {
      at_ = 0;
      ++pass_;
    }
    const std::uint32_t target = order_[at_++];
    return {source_page(target, pass_, static_cast<std::uint32_t>(order_.size())), target};
  }
  std::uint32_t block_bytes() const { return static_cast<std::uint32_t>(block_bytes_); }

 private:
  std::uint64_t block_bytes_ = 0;
  std::vector<std::uint32_t> order_;
  std::size_t at_ = 0;
  std::uint32_t pass_ = 0;
};

// Remembers the newest copies of a run for check().
class CopySample {
 public:
  explicit CopySample(std::uint32_t block_bytes);
  void add(FlatOrder::Copy copy) { ring_[count_++ % ring_.size()] = copy; }
  // The number of blocks that were compared.
  Result<std::uint64_t> check(const Pool& pool) const;

 private:
  std::uint32_t block_bytes_;
  std::vector<FlatOrder::Copy> ring_;
  std::uint64_t count_ = 0;
};

// Bytes of a run that are compared at most.
inline constexpr std::uint64_t kCheckedBytes = 8U << 20;

}  // namespace kvferry::bench
