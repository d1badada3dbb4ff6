#include "bench/transfer/memcpy_engine.h"

#include <cstring>

#include "base/clock.h"
#include "bench/transfer/flat_order.h"

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kBytesPerLook = 256U << 10;  // between two looks at the clock

class MemcpySource final : public SourceEngine {
 public:
  Status prepare(const Block&, Channel&) override { return {}; }
  Result<PostResult> run(const RunOrder&, Channel& target) override {
    auto end = target.expect(Kind::kEnd, 10 * kPatience);
    if (!end) return tl::unexpected(end.error());
    return PostResult{};
  }
};

class MemcpyTarget final : public TargetEngine {
 public:
  explicit MemcpyTarget(const Pool& pool) : pool_(pool) {}

  Status prepare(const Block& block, Channel&) override {
    order_ = FlatOrder(block);
    return {};
  }

  Result<RunResult> run(const RunOrder& order, Channel& source) override {
    const std::uint64_t block_bytes = order_.block_bytes();
    CopySample sample(order_.block_bytes());
    Measurement measurement(order, monotonic_now());
    for (std::uint64_t bytes = 0; measurement.goes_on(monotonic_now(), bytes);) {
      for (std::uint64_t done = 0; done < kBytesPerLook; done += block_bytes) {
        const FlatOrder::Copy copy = order_.next();
        std::memcpy(pool_.base + copy.target * block_bytes,
                    pool_.source_base + copy.source * block_bytes, block_bytes);
        sample.add(copy);
        bytes += block_bytes;
      }
    }
    if (auto sent = source.send({Kind::kEnd, {}, {}, {}}); !sent)
      return tl::unexpected(sent.error());
    auto checked = sample.check(pool_);
    if (!checked) return tl::unexpected(checked.error());
    RunResult result = measurement.result();
    result.checked_pages = *checked;
    return result;
  }

 private:
  const Pool pool_;
  FlatOrder order_;
};

}  // namespace

std::unique_ptr<SourceEngine> make_memcpy_source() { return std::make_unique<MemcpySource>(); }
std::unique_ptr<TargetEngine> make_memcpy_target(const Pool& pool) {
  return std::make_unique<MemcpyTarget>(pool);
}

}  // namespace kvferry::bench
