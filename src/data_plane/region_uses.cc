#include "data_plane/region_uses.h"

#include <algorithm>
#include <string>

namespace kvferry::data_plane {
namespace {

bool has_same_shape(std::span<const Region> left, std::span<const Region> right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const Region& a, const Region& b) {
                      return a.item_bytes == b.item_bytes && a.item_count == b.item_count;
                    });
}

tl::unexpected<Failure> wrong_state(std::string what) {
  return fail(FailureCode::kWrongState, std::move(what));
}

}  // namespace

Status RegionUses::register_regions(std::span<const Region> regions, bool has_sessions) {
  std::lock_guard lock(mutex_);
  if (state_ == State::kRegistered) {
    return wrong_state("regions are registered already; unregister them first");
  }
  if (state_ == State::kReleasing) {
    return wrong_state("the former regions are still used; wait for regions_released");
  }
  if (has_sessions && !has_same_shape(regions, regions_)) {
    return wrong_state(
        "sessions are open whose peers know other regions than these (their number, item_bytes or "
        "item_count differs); close the sessions first");
  }
  regions_.assign(regions.begin(), regions.end());
  state_ = State::kRegistered;
  return {};
}

Status RegionUses::unregister_regions(Unregister how) {
  std::lock_guard lock(mutex_);
  if (state_ == State::kNone) return wrong_state("no regions are registered");
  if (state_ == State::kReleasing) return wrong_state("the regions are being unregistered already");
  if (how == Unregister::kRefuseWhileUsed && (writes_ != 0 || !grants_.empty())) {
    return wrong_state("the regions are used by " + std::to_string(grants_.size()) +
                       " grants that are open or not fenced yet and by " + std::to_string(writes_) +
                       " posted writes without an end");
  }
  state_ = State::kReleasing;
  release_if_unused();
  return {};
}

bool RegionUses::begin_writes(std::size_t count) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kRegistered) return false;
  writes_ += count;
  return true;
}

bool RegionUses::begin_grant(GrantId grant) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kRegistered) return false;
  grants_.insert(grant);
  return true;
}

void RegionUses::release_if_unused() noexcept {
  if (state_ != State::kReleasing || writes_ != 0 || !grants_.empty()) return;
  state_ = State::kNone;
  sink_.regions_released();
}

void RegionUses::writes_completed(std::span<const WriteCompletion> completions) noexcept {
  const auto ended =
      std::count_if(completions.begin(), completions.end(), [](const WriteCompletion& completion) {
        return completion.outcome != layout::WriteOutcome::kUnknown;
      });
  std::lock_guard lock(mutex_);
  sink_.writes_completed(completions);
  writes_ -= static_cast<std::size_t>(ended);
  release_if_unused();
}

void RegionUses::writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept {
  std::lock_guard lock(mutex_);
  sink_.writes_quiet(session, tickets);
  writes_ -= tickets.size();
  release_if_unused();
}

void RegionUses::fence_done(GrantId grant) noexcept {
  std::lock_guard lock(mutex_);
  sink_.fence_done(grant);
  grants_.erase(grant);
  release_if_unused();
}

void RegionUses::writes_landed(std::span<const Landing> landings) noexcept {
  sink_.writes_landed(landings);
}

void RegionUses::write_torn(const Landing& landing, std::string_view how) noexcept {
  sink_.write_torn(landing, how);
}

void RegionUses::lane_failed(SessionEpoch session, Failure cause) noexcept {
  sink_.lane_failed(session, std::move(cause));
}

void RegionUses::session_unreachable(SessionEpoch session, Failure cause) noexcept {
  sink_.session_unreachable(session, std::move(cause));
}

void RegionUses::session_torn_down(SessionEpoch session) noexcept {
  sink_.session_torn_down(session);
}

void RegionUses::regions_released() noexcept { sink_.regions_released(); }

}  // namespace kvferry::data_plane
