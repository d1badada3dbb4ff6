#include "bench/transfer/fenced_run.h"

#include <algorithm>

#include "base/clock.h"

namespace kvferry::bench {

FencedRun::FencedRun(TransportTarget& target, const RunOrder& order)
    : target_(target), order_(order), prng_(target.next_salt_), released_(target) {
  for (std::uint32_t slot = 0; slot < target_.block_.grants_in_flight; ++slot) opened(slot);
}

Result<RunResult> FencedRun::run(Channel& source) {
  TargetSink& sink = *target_.sink_;
  const std::uint64_t bytes_before = sink.landed_bytes();
  Measurement measurement(order_, monotonic_now());
  std::uint64_t last_bytes = bytes_before;
  Instant stuck_at = monotonic_now() + kPatience;
  bool goes_on = true;
  while (goes_on || target_.open_slots_ > 0) {
    const Instant now = monotonic_now();
    const std::uint64_t bytes = sink.landed_bytes();
    goes_on = goes_on && measurement.goes_on(now, bytes - bytes_before, latencies_.size());
    if (bytes != last_bytes) stuck_at = now + kPatience;
    if (now >= stuck_at) return fail(FailureCode::kRoomTimeout, "nothing lands any more");
    last_bytes = bytes;
    const TargetSink::Events events =
        sink.wait(goes_on ? measurement.next_look(now) : now + milliseconds(100));
    if (!events.failure.empty()) return fail(FailureCode::kWriteTorn, events.failure);
    for (const TargetSink::Full& full : events.full) {
      if (target_.open_[full.slot].id.value() == full.generation.value()) on_full(full.slot);
    }
    for (const TargetSink::Fenced& fenced : events.fenced) {
      const std::uint32_t slot = target_.slot_of(fenced.grant);
      on_fenced(fenced, slot);
      if (!goes_on) continue;
      if (auto next = target_.open_next(slot, source); !next) return tl::unexpected(next.error());
      opened(slot);
    }
    released_.look(false);
  }
  if (auto sent = source.send({Kind::kEnd, {}, {}, {}}); !sent) {
    return tl::unexpected(sent.error());
  }
  // All that was posted has its outcome when the source answers; until then writes may still come.
  if (auto past = source.expect(Kind::kEnd, kPatience); !past) return tl::unexpected(past.error());
  released_.look(true);
  // Late bytes are a figure, not a failure of the run; who writes late spoils other pages too.
  if (released_.late_pages() > 0) return result(measurement);
  auto checked = target_.check();
  if (!checked) return tl::unexpected(checked.error());
  sampled_pages_ = *checked;
  return result(measurement);
}

// Marks one grant in eight, to be fenced when one of the three before it is full: then its own
// writes are next, or under way.
void FencedRun::opened(std::uint32_t slot) {
  const std::uint32_t salt = target_.open_[slot].salt;
  if (salt % kEvery != 0) return;
  early_.emplace(salt - 1 - static_cast<std::uint32_t>(prng_.below(3)), slot);
}

void FencedRun::on_full(std::uint32_t slot) {
  const std::uint32_t salt = target_.open_[slot].salt;
  if (!target_.open_[slot].is_fencing) target_.fence(slot);
  const auto found = early_.find(salt);
  if (found == early_.end()) return;
  TransportTarget::OpenGrant& victim = target_.open_[found->second];
  early_.erase(found);
  const bool is_there = victim.salt > salt && victim.salt - salt <= 3;
  if (!is_there || victim.is_fencing) return;
  victim.is_early = true;
  victim.fence_at = monotonic_now();
  target_.fence(static_cast<std::uint32_t>(&victim - target_.open_.data()));
}

void FencedRun::on_fenced(const TargetSink::Fenced& fenced, std::uint32_t slot) {
  TransportTarget::OpenGrant& grant = target_.open_[slot];
  // All of it may have landed before the fence, which then met no stale write.
  if (target_.sink_->missing_bytes(slot) == 0) grant.is_early = false;
  if (grant.is_early) latencies_.push_back(fenced.at - grant.fence_at);
  const bool is_watched = grant.is_early && order_.mode == RunMode::kFenceCheck;
  target_.close(slot, !is_watched);
  if (is_watched) released_.hold(grant.index);
}

RunResult FencedRun::result(const Measurement& measurement) {
  RunResult result = measurement.result();
  result.checked_pages = released_.checked_pages() + sampled_pages_;
  result.releases = latencies_.size();
  result.late_pages = released_.late_pages();
  if (latencies_.empty()) return result;
  std::sort(latencies_.begin(), latencies_.end());
  result.release_p50 = latencies_[latencies_.size() / 2];
  result.release_p99 = latencies_[latencies_.size() * 99 / 100];
  result.release_max = latencies_.back();
  return result;
}

}  // namespace kvferry::bench
