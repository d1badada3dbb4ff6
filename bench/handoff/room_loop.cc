#include "bench/handoff/room_loop.h"

#include <poll.h>

#include <algorithm>

#include "base/clock.h"

namespace kvferry::bench {
namespace {

constexpr int kSleepMs = 20;  // a bound only: the descriptor wakes it

}  // namespace

RoomLoop::RoomLoop(KvManager& manager, RoomSide& side, const HandoffOrder& order,
                   std::uint32_t pages_per_room)
    : manager_(manager), side_(side), order_(order), pages_per_room_(pages_per_room) {
  const auto lanes =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(order.concurrency, order.rooms));
  lanes_.resize(lanes);
  ids_.assign(lanes, 0);
  seen_.assign(lanes, KvPoll::kFailed);
  for (std::uint32_t lane = lanes; lane-- > 0;) idle_.push_back(lane);
  lane_of_.reserve(lanes);
  latencies_.reserve(order.rooms);
}

SideResult RoomLoop::run(const std::function<void()>& started) {
  const Instant begin = monotonic_now();
  const Instant end = begin + milliseconds(order_.patience_ms);
  open_rooms();
  started();
  while (finished_ < order_.rooms && monotonic_now() < end) {
    ++result_.turns;
    bool moved = poll_rooms();
    abort_rooms();
    moved = take_pages() || moved;
    moved = open_rooms() || moved;
    if (!moved) sleep();
  }
  result_.duration = monotonic_now() - begin;
  result_.hung = order_.rooms - finished_;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].room == 0) continue;
    note_failure(lane, false);
    side_.close(lane);
  }
  result_.p50 = latencies_.quantile(0.5);
  result_.p99 = latencies_.quantile(0.99);
  result_.max = latencies_.max();
  return result_;
}

bool RoomLoop::open_rooms() {
  bool moved = false;
  while (!idle_.empty()) {
    const std::uint32_t lane = idle_.back();
    idle_.pop_back();
    Lane& each = lanes_[lane];
    const std::uint64_t next =
        each.room == 0 ? order_.first_room + lane : each.room + lanes_.size();
    if (next >= order_.first_room + order_.rooms) {
      each.room = 0;
      continue;
    }
    each = Lane{};
    each.room = next;
    each.opened = monotonic_now();
    seen_[lane] = KvPoll::kBootstrapping;
    ids_[lane] = side_.open(lane, next);
    lane_of_.emplace(ids_[lane], lane);
    if (order_.abort_permille > 0) {
      each.abort = abort_plan_of(next, order_);
      if (side_.aborts(each.abort)) {
        each.abort_due = true;
        aborting_.push_back(lane);
      }
    }
    moved = true;
  }
  return moved;
}

bool RoomLoop::poll_rooms() {
  const auto changed = manager_.take_changed();
  return changed ? poll_changed(*changed) : poll_all();
}

bool RoomLoop::poll_changed(const std::vector<std::uint64_t>& changed) {
  statuses_.resize(changed.size());
  manager_.poll_many(changed, statuses_);
  bool moved = false;
  for (std::size_t i = 0; i < changed.size(); ++i) {
    const auto found = lane_of_.find(changed[i]);  // an earlier turn may have finished it
    if (found == lane_of_.end() || statuses_[i] == seen_[found->second]) continue;
    note_status(found->second, statuses_[i]);
    moved = true;
  }
  return moved;
}

bool RoomLoop::poll_all() {
  statuses_.resize(ids_.size());
  manager_.poll_many(ids_, statuses_);
  bool moved = false;
  for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) {
    // An idle lane's id names nothing and reads as failed, which is what was seen of it.
    if (statuses_[lane] == seen_[lane]) continue;
    note_status(lane, statuses_[lane]);
    moved = true;
  }
  return moved;
}

void RoomLoop::note_status(std::uint32_t lane, KvPoll status) {
  seen_[lane] = status;
  if (is_terminal(status)) {
    note_end(lane, status);
  } else {
    side_.step(lane, lanes_[lane].room, status);
  }
}

void RoomLoop::note_end(std::uint32_t lane, KvPoll status) {
  Lane& each = lanes_[lane];
  latencies_.add(monotonic_now() - each.opened);
  each.ended = true;
  side_.check(lane, each.room, status);
  if (status == KvPoll::kSuccess) {
    ++result_.succeeded;
  } else {
    ++result_.failed;
    const bool is_asked =
        order_.abort_permille > 0 && (each.abort.by_prefill || each.abort.by_decode);
    note_failure(lane, is_asked);
  }
  if (each.is_back || !side_.is_lent(lane, status)) finish(lane);
}

void RoomLoop::note_failure(std::uint32_t lane, bool is_asked) {
  if (is_asked) return;
  ++result_.unasked;
  if (result_.first_failure[0] != '\0') return;
  const std::string text = side_.failure(lane);
  text.copy(result_.first_failure.data(), result_.first_failure.size() - 1);
}

bool RoomLoop::take_pages() {
  const std::vector<ReleasedPages> released = manager_.take_released();
  for (const ReleasedPages& each : released) {
    if (each.pages.empty()) continue;  // an aux slot alone
    const std::uint32_t lane = each.pages.front().value() / pages_per_room_;
    const bool is_expected = lane < lanes_.size() && ids_[lane] == each.owner &&
                             !lanes_[lane].is_back && each.pages.size() == pages_per_room_;
    if (!is_expected) {
      ++result_.stray_pages;
      continue;
    }
    lanes_[lane].is_back = true;
    if (lanes_[lane].ended) finish(lane);
  }
  return !released.empty();
}

void RoomLoop::abort_rooms() {
  std::erase_if(aborting_, [&](std::uint32_t lane) {
    Lane& each = lanes_[lane];
    if (!each.abort_due) return true;  // its room has ended
    if (seen_[lane] < each.abort.at) return false;
    if (each.abort.turns > 0) {
      --each.abort.turns;
      return false;
    }
    ++result_.aborts;
    side_.abort(lane);
    each.abort_due = false;
    return true;
  });
}

void RoomLoop::finish(std::uint32_t lane) {
  // Rule 11: what was read as the end is what it stays.
  if (side_.poll(lane) != seen_[lane]) ++result_.changed_ends;
  side_.close(lane);
  lane_of_.erase(ids_[lane]);
  ids_[lane] = 0;
  seen_[lane] = KvPoll::kFailed;
  lanes_[lane].abort_due = false;
  ++finished_;
  idle_.push_back(lane);
}

void RoomLoop::sleep() {
  pollfd waiting{manager_.event_fd(), POLLIN, 0};
  ::poll(&waiting, 1, aborting_.empty() ? kSleepMs : 1);
  manager_.drain_event_fd();
}

}  // namespace kvferry::bench
