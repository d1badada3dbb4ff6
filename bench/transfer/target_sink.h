// The target end's sink: counts landings per slot and wakes the driver when a grant is full or
// fenced.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/instant.h"
#include "bench/transfer/null_sink.h"

namespace kvferry::bench {

class TargetSink final : public NullSink {
 public:
  struct Full {
    std::uint32_t slot;
    Generation generation;  // the slot may have a new one when the driver reads this
  };
  struct Fenced {
    GrantId grant;
    Instant at;
  };
  struct Events {
    std::vector<Full> full;
    std::vector<Fenced> fenced;
    std::string failure;  // the first one
  };

  explicit TargetSink(std::uint32_t slot_count) : slots_(slot_count) {}

  // Before the grant is opened.
  void expect(std::uint32_t slot, Generation generation, std::uint64_t bytes);
  // Of the slot's present life.
  std::uint64_t missing_bytes(std::uint32_t slot);
  std::uint64_t landed_bytes() const { return landed_bytes_.load(std::memory_order_relaxed); }
  // Returns with what has happened, or at that time.
  Events wait(Instant until);

  void writes_landed(std::span<const layout::Landing> landings) noexcept override;
  void write_torn(const layout::Landing& landing, std::string_view how) noexcept override;
  void fence_done(GrantId grant) noexcept override;
  void lane_failed(SessionEpoch session, Failure cause) noexcept override;

 private:
  struct alignas(64) Slot {
    // Receiving threads report landings of the former life while the driver opens the next.
    std::mutex mutex;
    Generation generation;
    std::uint64_t missing_bytes = 0;
  };

  // Landings of a life that was fenced meanwhile count as bytes, and fill nothing.
  void fill(std::uint32_t slot, Generation generation, std::uint64_t bytes);
  void failed(std::string what);

  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> landed_bytes_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  Events events_;
};

}  // namespace kvferry::bench
