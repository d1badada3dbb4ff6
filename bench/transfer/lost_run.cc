#include "bench/transfer/lost_run.h"

#include <algorithm>

#include "base/clock.h"

namespace kvferry::bench {
namespace {

constexpr milliseconds kLook{5};

}  // namespace

Result<RunResult> LostRun::run(Channel& source) {
  if (auto lost = until_lost(source); !lost) return tl::unexpected(lost.error());
  auto known_at = fence_all();
  if (!known_at) return tl::unexpected(known_at.error());
  // A source that comes back posts what it was asked for and answers; a dead one does not.
  if (source.send({Kind::kEnd, {}, {}, {}})) {
    if (auto past = source.expect(Kind::kEnd, 2 * kPatience); !past) {
      if (past.error().code != FailureCode::kPeerLost) return tl::unexpected(past.error());
    }
  }
  released_.look(true);
  auto checked = target_.check();
  if (!checked) return tl::unexpected(checked.error());
  RunResult result;
  result.checked_pages = released_.checked_pages() + *checked;
  result.releases = releases_;
  result.late_pages = released_.late_pages();
  result.known_at = known_at->since_start();
  return result;
}

Status LostRun::until_lost(Channel& source) {
  const milliseconds deadline(target_.setup_.write_timeout_ms);
  std::uint64_t last_bytes = target_.sink_->landed_bytes();
  Instant landed_at = monotonic_now();
  while (true) {
    const Instant now = monotonic_now();
    const std::uint64_t bytes = target_.sink_->landed_bytes();
    if (bytes != last_bytes) landed_at = now;
    last_bytes = bytes;
    if (now - landed_at >= deadline) return {};
    const TargetSink::Events events =
        target_.sink_->wait(std::min(now + kLook, landed_at + deadline));
    for (const TargetSink::Full& full : events.full) target_.fence(full.slot);
    for (const TargetSink::Fenced& fenced : events.fenced) {
      const std::uint32_t slot = target_.slot_of(fenced.grant);
      target_.close(slot);
      // The source may have died just now; its lanes tell.
      if (!target_.open_next(slot, source)) continue;
    }
    if (!events.failure.empty()) return {};
  }
}

Result<Instant> LostRun::fence_all() {
  for (std::uint32_t slot = 0; slot < target_.open_.size(); ++slot) {
    TransportTarget::OpenGrant& grant = target_.open_[slot];
    if (!grant.is_open || grant.is_fencing) continue;
    grant.is_early = true;
    target_.fence(slot);
  }
  Instant last = monotonic_now();
  const Instant patience = last + kPatience;
  while (target_.open_slots_ > 0) {
    if (monotonic_now() >= patience)
      return fail(FailureCode::kFenceOverdue, "a fence does not end");
    for (const TargetSink::Fenced& fenced : target_.sink_->wait(patience).fenced) {
      last = fenced.at;
      const std::uint32_t slot = target_.slot_of(fenced.grant);
      const TransportTarget::OpenGrant& grant = target_.open_[slot];
      target_.close(slot, !grant.is_early);
      if (!grant.is_early) continue;
      ++releases_;
      released_.hold(grant.index);
    }
  }
  return last;
}

}  // namespace kvferry::bench
