#include "bench/transfer/target_sink.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/clock.h"

namespace kvferry::bench {

void TargetSink::expect(std::uint32_t slot, Generation generation, std::uint64_t bytes) {
  std::lock_guard lock(slots_[slot].mutex);
  slots_[slot].missing_bytes = bytes;
  slots_[slot].generation = generation;
}

std::uint64_t TargetSink::missing_bytes(std::uint32_t slot) {
  std::lock_guard lock(slots_[slot].mutex);
  return slots_[slot].missing_bytes;
}

TargetSink::Events TargetSink::wait(Instant until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, std::chrono::steady_clock::time_point(until.since_start()), [&] {
    return !events_.full.empty() || !events_.fenced.empty() || !events_.failure.empty();
  });
  return std::exchange(events_, {});
}

void TargetSink::writes_landed(std::span<const layout::Landing> landings) noexcept {
  std::uint64_t all_bytes = 0;
  for (std::size_t i = 0; i < landings.size();) {
    const layout::Landing& first = landings[i];
    std::uint64_t bytes = 0;
    for (; i < landings.size() && landings[i].slot == first.slot &&
           landings[i].generation == first.generation;
         ++i) {
      bytes += landings[i].length;
    }
    all_bytes += bytes;
    fill(first.slot.value(), first.generation, bytes);
  }
  landed_bytes_.fetch_add(all_bytes, std::memory_order_relaxed);
}

void TargetSink::write_torn(const layout::Landing&, std::string_view how) noexcept {
  failed(fmt::format("a write {}", how));
}

void TargetSink::fence_done(GrantId grant) noexcept {
  const Instant now = monotonic_now();
  std::lock_guard lock(mutex_);
  events_.fenced.push_back({grant, now});
  changed_.notify_one();
}

void TargetSink::lane_failed(SessionEpoch, Failure cause) noexcept { failed(to_string(cause)); }

void TargetSink::fill(std::uint32_t index, Generation generation, std::uint64_t bytes) {
  if (index >= slots_.size()) return failed("bytes landed in no slot");
  Slot& slot = slots_[index];
  {
    std::lock_guard lock(slot.mutex);
    if (generation < slot.generation) return;
    if (generation > slot.generation || bytes > slot.missing_bytes) {
      return failed("more landed than was granted");
    }
    slot.missing_bytes -= bytes;
    if (slot.missing_bytes != 0) return;
  }
  std::lock_guard lock(mutex_);
  events_.full.push_back({index, generation});
  changed_.notify_one();
}

void TargetSink::failed(std::string what) {
  std::lock_guard lock(mutex_);
  if (events_.failure.empty()) events_.failure = std::move(what);
  changed_.notify_one();
}

}  // namespace kvferry::bench
