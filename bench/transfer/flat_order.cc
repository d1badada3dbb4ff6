#include "bench/transfer/flat_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/transfer/pattern.h"

namespace kvferry::bench {

CopySample::CopySample(std::uint32_t block_bytes)
    : block_bytes_(block_bytes),
      ring_(std::max<std::uint64_t>(1, std::min<std::uint64_t>(64, kCheckedBytes / block_bytes))) {}

Result<std::uint64_t> CopySample::check(const Pool& pool) const {
  const std::uint64_t kept = std::min<std::uint64_t>(count_, ring_.size());
  for (std::uint64_t i = 0; i < kept; ++i) {
    const FlatOrder::Copy copy = ring_[i];
    const std::uint64_t to = std::uint64_t{copy.target} * block_bytes_;
    const std::uint64_t from = std::uint64_t{copy.source} * block_bytes_;
    if (!holds_pattern({pool.base + to, block_bytes_}, from)) {
      return fail(FailureCode::kUnspecified,
                  fmt::format("block {} of the target does not hold block {} of the source",
                              copy.target, copy.source));
    }
  }
  return kept;
}

}  // namespace kvferry::bench
