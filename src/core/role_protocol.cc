#include "core/role_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvferry::core {

RoleProtocol::RoleProtocol(ProtocolConfig config, Environment& environment)
    : config_(std::move(config)),
      options_(config_.options),
      guards_(config_.guards),
      sessions_(config_, environment) {}

void RoleProtocol::step(Instant now, std::span<Event> events, ActionSink& sink) {
  now_ = now;
  sink_ = &sink;
  for (Event& event : events) {
    if (!settle_link(event)) {
      settle(event);
    }
    settle_outputs();
  }
  // The pause rule: what peers said while this process slept counts before its own deadlines do.
  const bool paused = guards_.has(Guard::kPauseRule) && stepped_ &&
                      now - last_step_ > milliseconds(options_.pause_threshold_ms);
  timers_deferred_ = paused && !timers_deferred_;
  if (!timers_deferred_) {
    run_timers();
  }
  sessions_.flush(now_, sink);
  settle_outputs();
  last_step_ = now;
  stepped_ = true;
  sink_ = nullptr;
}

Instant RoleProtocol::next_deadline() const {
  return timers_deferred_ ? now_ : std::min(next_room_deadline(), sessions_.next_deadline());
}

bool RoleProtocol::settle_link(Event& event) {
  if (const auto* up = std::get_if<LinkUp>(&event)) {
    sessions_.handle_link_up(up->peer, now_, *sink_);
  } else if (const auto* down = std::get_if<LinkDown>(&event)) {
    sessions_.handle_link_down(*down, now_, *sink_);
  } else if (auto* frame = std::get_if<FrameArrived>(&event)) {
    sessions_.handle_frame(*frame, now_, *sink_);
  } else if (const auto* tested = std::get_if<PathTested>(&event)) {
    sessions_.handle_path_tested(*tested, *sink_);
  } else if (const auto* lane = std::get_if<LaneFailed>(&event)) {
    sessions_.handle_lane_failed(*lane, now_, *sink_);
  } else {
    return false;
  }
  return true;
}

void RoleProtocol::settle_outputs() {
  for (auto outputs = sessions_.take_outputs(); !outputs.empty();
       outputs = sessions_.take_outputs()) {
    for (SessionOutput& output : outputs) {
      settle(output);
    }
  }
}

void RoleProtocol::run_timers() {
  sessions_.handle_timers(now_, *sink_);
  settle_outputs();
  while (run_due_timer()) {
    settle_outputs();
  }
}

Failure RoleProtocol::with_rank(Failure cause) const {
  if (cause.rank < 0) {
    const RankCoordinates& rank = config_.self.layout.rank;
    cause.rank = static_cast<std::int32_t>(
        (rank.dp_rank * rank.pp_size + rank.pp_rank) * rank.tp_size + rank.tp_rank);
  }
  return cause;
}

std::optional<Failure> RoleProtocol::refuse_room(const RoomKey& key, bool is_open,
                                                 std::size_t open) const {
  if (is_open) {
    return Failure{FailureCode::kDuplicateRoom,
                   FailureWhere::kLocal,
                   fmt::format("room {} with this binding is open here already", key.room.value()),
                   {},
                   -1};
  }
  if (open >= options_.max_rooms) {
    return Failure{FailureCode::kTableFull,
                   FailureWhere::kLocal,
                   fmt::format("{} rooms are open (max_rooms)", options_.max_rooms),
                   {},
                   -1};
  }
  return stopping_;
}

void RoleProtocol::note_opened(std::uint64_t owner) {
  ++opened_rooms_;
  live_.insert(owner);
}

std::int64_t RoleProtocol::oldest_room_ms(Instant now) const {
  return live_.empty() ? 0 : (now - opened_at(live_.least())) / milliseconds(1);
}

void RoleProtocol::note_slow(const RoomKey& key, AttemptId attempt, KvPoll status,
                             std::string_view waits_for, std::uint32_t deadline_ms) {
  sink_->count("slow_rooms");
  sink_->note(fmt::format("room {} attempt {}: in {} for a quarter of its {} ms, waiting for {}",
                          key.room.value(), attempt.value(), to_string(status), deadline_ms,
                          waits_for));
}

}  // namespace kvferry::core
