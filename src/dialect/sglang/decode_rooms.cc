#include "dialect/sglang/decode_rooms.h"

#include <algorithm>

namespace kvferry::sglang {

DecodeTarget* DecodeAttempt::find(std::uint32_t rank) {
  const auto found = std::ranges::find(targets, rank, &DecodeTarget::rank);
  return found == targets.end() ? nullptr : &*found;
}

DecodeTarget* DecodeAttempt::find(PeerId peer, SessionEpoch epoch) {
  const auto found = std::ranges::find_if(targets, [&](const DecodeTarget& target) {
    return target.peer == peer && target.epoch == epoch && target.is_granted();
  });
  return found == targets.end() ? nullptr : &*found;
}

bool DecodeAttempt::is_gathered() const {
  return std::ranges::all_of(
      targets, [](const DecodeTarget& target) { return target.is_dummy || target.is_granted(); });
}

bool DecodeAttempt::has_succeeded() const {
  return std::ranges::all_of(
      targets, [](const DecodeTarget& target) { return target.is_dummy || target.has_succeeded; });
}

bool DecodeAttempt::is_over() const {
  const bool succeeded = has_succeeded();
  return std::ranges::all_of(targets, [&](const DecodeTarget& target) {
    if (target.is_dummy) {
      return succeeded || target.peer_is_through();
    }
    return target.core_is_through && target.peer_is_through();
  });
}

DecodeAttempt* DecodeRooms::find(AttemptId id) {
  const auto found = attempts_.find(id);
  return found == attempts_.end() ? nullptr : &found->second;
}

DecodeAttempt* DecodeRooms::find(RoomId room) {
  const auto found = by_room_.find(room);
  return found == by_room_.end() ? nullptr : find(found->second);
}

DecodeAttempt& DecodeRooms::open(AttemptId id, RoomId room) {
  by_room_.emplace(room, id);
  DecodeAttempt& attempt = attempts_[id];
  attempt.id = id;
  attempt.room = room;
  return attempt;
}

std::optional<std::string_view> DecodeRooms::refusal(RoomId room) const {
  if (by_room_.contains(room)) {
    return "an earlier life of this room is not over yet";
  }
  if (unproven_.contains(room)) {
    return "an earlier life of this room is not known to be over";
  }
  if (lost_count_) {
    return "more rooms than can be kept account of are not known to be over";
  }
  return std::nullopt;
}

void DecodeRooms::close(AttemptId id) {
  const auto found = attempts_.find(id);
  if (found == attempts_.end()) {
    return;
  }
  schedule(found->second, std::nullopt);
  const RoomId room = found->second.room;
  const bool unproven = found->second.phase != DecodeAttempt::Phase::kGathering &&
                        std::ranges::any_of(found->second.targets, [](const DecodeTarget& target) {
                          return !target.is_dummy && !target.is_quiet();
                        });
  if (unproven && unproven_.size() < max_unproven_) {
    unproven_.insert(room);
  } else if (unproven) {
    lost_count_ = true;
  }
  by_room_.erase(room);
  attempts_.erase(found);
}

void DecodeRooms::schedule(DecodeAttempt& attempt, std::optional<Instant> due) {
  if (attempt.due) {
    timers_.erase({*attempt.due, attempt.id});
  }
  attempt.due = due;
  if (due) {
    timers_.emplace(*due, attempt.id);
  }
}

std::optional<Instant> DecodeRooms::next_due() const {
  return timers_.empty() ? std::nullopt : std::optional(timers_.begin()->first);
}

std::vector<AttemptId> DecodeRooms::due_by(Instant now) const {
  std::vector<AttemptId> due;
  for (auto timer = timers_.begin(); timer != timers_.end() && timer->first <= now; ++timer) {
    due.push_back(timer->second);
  }
  return due;
}

}  // namespace kvferry::sglang
