#include "core/prefill_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvferry::core {

std::unique_ptr<Protocol> make_prefill_protocol(ProtocolConfig config, Environment& environment) {
  return std::make_unique<PrefillProtocol>(std::move(config), environment);
}

PrefillProtocol::PrefillProtocol(ProtocolConfig config, Environment& environment)
    : RoleProtocol(std::move(config), environment),
      ended_(options_.max_ended_senders),
      timers_(guards_),
      unopened_timers_(guards_) {}

void PrefillProtocol::settle(Event& event) {
  std::visit([this](auto& fact) { on(fact); }, event);
}

bool PrefillProtocol::run_due_timer() {
  if (const auto unopened = unopened_timers_.pop_due(now_)) {
    unopened_deadline(*unopened);
    return true;
  }
  const auto key = timers_.pop_due(now_);
  if (!key) {
    return false;
  }
  if (PrefillRoom* room = find(key->sender)) {
    if (key->kind == TimerKind::kRoom && room->own_cause) {
      fail_room(*room, *room->own_cause);
    } else if (key->kind == TimerKind::kRoom) {
      fail_room(*room, Failure{FailureCode::kRoomTimeout,
                               FailureWhere::kLocal,
                               fmt::format("no end of {} by its deadline, waiting for {}",
                                           to_string(room->status), room->waits_for()),
                               {},
                               -1});
    } else if (key->kind == TimerKind::kSlow) {
      const AttemptId attempt =
          room->targets.empty() ? AttemptId{} : room->targets.front()->grant.attempt;
      note_slow(room->key, attempt, room->status, room->waits_for(), room->deadline_ms);
      timers_.set({TimerKind::kRoom, room->sender}, room->deadline);
    } else {
      give_up_source(*room);
    }
  }
  return true;
}

// --- senders ---

void PrefillProtocol::on(SenderOpened& event) {
  const RoomKey key{event.room, event.binding};
  auto owned = std::make_unique<PrefillRoom>(event.sender, key, now_);
  PrefillRoom& room = *owned;
  rooms_.emplace(event.sender, std::move(owned));
  note_opened(event.sender.value());
  const bool is_duplicate = open_.contains(match(key));
  const Failure* ended = is_duplicate ? nullptr : ended_.find(match(key));
  // What ended it before it was opened here is its first cause.
  const std::optional<Failure> refusal =
      ended != nullptr ? *ended : refuse_room(key, is_duplicate, open_.size());
  if (refusal) {
    room.cause = with_rank(*refusal);
    room.released = true;
    enter(room, RoomTrigger::kFailed);
    sink_->publish_terminal(event.sender.value(), KvPoll::kFailed, room.cause);
    if (!is_duplicate) {
      // Of a duplicate the first one lives; else nobody will serve this request here.
      remember_ended(key, *room.cause);
      refuse_unopened(key, *room.cause);
    }
    return;
  }
  open_.emplace(match(key), event.sender);
  set_deadline(room, options_.bootstrap_timeout_ms);
  adopt_unopened(room);
}

void PrefillProtocol::on(SenderInitialized& event) {
  PrefillRoom* room = find(event.sender);
  if (room == nullptr || room->initialized) {
    return;
  }
  room->initialized = true;
  room->page_count = event.page_count;
  room->aux_slot = event.aux_slot;
  if (room->is_terminal()) {
    // Only the aux slot was handed over so far; it goes straight back.
    room->released = false;
    release_source(*room);
    return;
  }
  for (const auto& target : room->targets) {
    if (const Status fits = check_grant(*room, target->epoch, target->grant); !fits) {
      fail_room(*room, fits.error());
      return;
    }
  }
  pump(*room);
}

void PrefillProtocol::on(ChunkGiven& event) {
  PrefillRoom* room = find(event.sender);
  if (room == nullptr) {
    return;
  }
  held_pages_total_ += event.pages.size();
  if (room->released) {
    // The room ended while the call was under way.
    released_pages_total_ += event.pages.size();
    sink_->release_pages(ReleasePages{room->sender.value(), room->key.room, room->key.binding,
                                      std::move(event.pages), -1, std::move(event.state_slots)});
    return;
  }
  room->given.insert(room->given.end(), event.pages.begin(), event.pages.end());
  room->chunk_given = true;
  if (!event.state_slots.empty()) {
    room->state_slots = std::move(event.state_slots);
  }
  if (room->is_terminal()) {
    release_if_settled(*room);
    return;
  }
  if (room->given.size() > room->page_count) {
    fail_room(*room, Failure{FailureCode::kInvalidArgument,
                             FailureWhere::kLocal,
                             fmt::format("send() was given {} pages, init() announced {}",
                                         room->given.size(), room->page_count),
                             {},
                             -1});
    return;
  }
  pump(*room);
}

void PrefillProtocol::on(SenderAborted& event) {
  if (PrefillRoom* room = find(event.sender)) {
    fail_room(*room, std::move(event.cause));
  }
}

void PrefillProtocol::on(SenderCleared& event) {
  PrefillRoom* room = find(event.sender);
  if (room == nullptr) {
    return;
  }
  fail_room(
      *room,
      Failure{FailureCode::kAborted, FailureWhere::kLocal, "the caller cleared the room", {}, -1});
  room->cleared = true;
  forget_if_over(event.sender);
}

void PrefillProtocol::on(StopRequested& event) {
  stopping_ = event.cause;
  std::vector<SenderId> live;
  live.reserve(open_.size());
  for (const auto& [key, sender] : open_) {
    live.push_back(sender);
  }
  for (const SenderId sender : live) {
    fail_room(*find(sender), event.cause);
  }
  sessions_.flush(now_, *sink_);
  sessions_.end_all(event.cause, now_, *sink_);
}

// Rule 1: the caller hears of it at once; source pages are held until nothing reads them (rule 5).
void PrefillProtocol::fail_room(PrefillRoom& room, Failure cause) {
  if (room.is_terminal()) {
    return;
  }
  room.cause = with_rank(std::move(cause));
  enter(room, RoomTrigger::kFailed);
  sink_->publish_terminal(room.sender.value(), KvPoll::kFailed, room.cause);
  open_.erase(match(room.key));
  cancel_deadline(room);
  if (!room.has_all_grants()) {
    remember_ended(room.key, *room.cause);
  }
  for (const auto& target : room.targets) {
    if (target->state == TargetState::kConsumed) {
      continue;
    }
    enter(*target, TargetTrigger::kGiveUp);
    if (target->outstanding > 0 && !target->session_over) {
      sink_->give_up_writes(
          GiveUpWrites{target->epoch, target->grant.slot, target->grant.generation});
    }
    if (!target->abort_seen) {
      sessions_.send(
          target->epoch,
          wire::Failed{room.key.room, room.key.binding, target->grant.attempt, *room.cause},
          Urgency::kUrgent, OwnerId{}, now_, *sink_);
    }
    drain_if_settled(room, *target);
  }
  release_if_fenced(room);
  if (!room.is_settled() && !room.released) {
    timers_.set({TimerKind::kSourceHold, room.sender},
                now_ + milliseconds(options_.source_hold_timeout_ms));
  }
  release_if_settled(room);
  forget_if_over(room.sender);
}

// Grants that come from now on hear the first cause at once (rule 12).
void PrefillProtocol::remember_ended(const RoomKey& key, const Failure& cause) {
  if (guards_.has(Guard::kEndedSender)) {
    ended_.add(match(key), cause);
  }
}

// Rule 5: nothing is posted, committed or given back before every decode rank's grant is here.
bool PrefillProtocol::has_needed_grants(const PrefillRoom& room) const {
  return guards_.has(Guard::kAllGrants) ? room.has_all_grants() : !room.targets.empty();
}

void PrefillProtocol::release_if_settled(PrefillRoom& room) {
  const bool settled = room.is_settled() || !guards_.has(Guard::kSourceHeld);
  const bool no_more_reads = room.is_terminal()
                                 ? settled || room.gave_up
                                 : has_needed_grants(room) && settled && room.is_posted();
  if (no_more_reads) {
    release_source(room);
  }
}

// The fence ends every read of the source, too: what is still under way will land nowhere, and what
// is unknown needs no other end (D2).
void PrefillProtocol::release_if_fenced(PrefillRoom& room) {
  const bool all_fenced = std::ranges::all_of(
      room.targets, [](const auto& each) { return each->fenced || each->outstanding == 0; });
  if (room.is_terminal() && all_fenced) {
    room.gave_up = true;
    release_source(room);
  }
}

void PrefillProtocol::release_source(PrefillRoom& room) {
  if (room.released) {
    return;
  }
  room.released = true;
  check_source(room);
  timers_.cancel({TimerKind::kSourceHold, room.sender});
  released_pages_total_ += room.given.size();
  if (!room.given.empty() || room.aux_slot >= 0 || !room.state_slots.empty()) {
    sink_->release_pages(ReleasePages{room.sender.value(), room.key.room, room.key.binding,
                                      std::move(room.given), room.aux_slot,
                                      std::move(room.state_slots)});
  }
  room.given.clear();
}

// Irrevocable: no Done follows (the room has failed), so what a stopped peer may still read is
// never part of a success (rule 5).
void PrefillProtocol::give_up_source(PrefillRoom& room) {
  if (!room.is_terminal()) {
    return;
  }
  room.gave_up = true;
  sink_->count("sources_given_up");
  release_source(room);
}

void PrefillProtocol::finish_if_consumed(PrefillRoom& room) {
  const bool finished =
      has_needed_grants(room) && room.is_consumed(!guards_.has(Guard::kSuccessOnConsumed));
  if (room.is_terminal() || !finished) {
    return;
  }
  if (!sink_->publish_terminal(room.sender.value(), KvPoll::kSuccess, std::nullopt) &&
      guards_.has(Guard::kCellDecides)) {
    fail_room(
        room,
        Failure{FailureCode::kAborted, FailureWhere::kLocal, "aborted by the caller", {}, -1});
    return;
  }
  enter(room, RoomTrigger::kCompleted);
  open_.erase(match(room.key));
  cancel_deadline(room);
  release_if_settled(room);
  forget_if_over(room.sender);
}

void PrefillProtocol::forget_if_over(SenderId sender) {
  PrefillRoom* room = find(sender);
  if (room == nullptr || !room->is_terminal() || !room->cleared) {
    return;
  }
  if (guards_.has(Guard::kOwedAfterClear) && !room->is_settled()) {
    return;  // Its peers are owed Drained, its caller the source pages.
  }
  for (const auto& target : room->targets) {
    if (const auto found = records_.find(target->epoch); found != records_.end()) {
      SessionRecord& record = *found->second;
      record.attempts.erase(target->grant.attempt);
      const bool remembered = room->cause || guards_.has(Guard::kRememberSucceeded);
      if (!record.over && remembered &&
          !record.tombstones.add(target->grant.attempt, room->cause)) {
        sink_->count("tombstones_over_limit");
      }
      drop_record_if_idle(target->epoch);
    }
  }
  release_source(*room);
  rooms_.erase(sender);
}

void PrefillProtocol::set_deadline(PrefillRoom& room, std::uint32_t after_ms) {
  room.deadline_ms = after_ms;
  if (!guards_.has(Guard::kEveryStateHasADeadline) && room.status == KvPoll::kBootstrapping) {
    return;
  }
  // One timer at a time: most rooms are over before a quarter of their time is.
  timers_.cancel({TimerKind::kRoom, room.sender});
  room.deadline = now_ + milliseconds(after_ms);
  timers_.set({TimerKind::kSlow, room.sender}, now_ + milliseconds(after_ms) / 4);
}

void PrefillProtocol::cancel_deadline(const PrefillRoom& room) {
  timers_.cancel({TimerKind::kRoom, room.sender});
  timers_.cancel({TimerKind::kSlow, room.sender});
}

// --- peers ---

void PrefillProtocol::settle(SessionOutput& output) {
  if (const auto* started = std::get_if<SessionStarted>(&output)) {
    session_started(*started);
  } else if (const auto* over = std::get_if<SessionOver>(&output)) {
    session_over(*over);
  } else if (auto* delivered = std::get_if<MessageDelivered>(&output)) {
    deliver(*delivered);
  }
}

void PrefillProtocol::session_started(const SessionStarted& started) {
  const Session* session = sessions_.find(started.epoch);
  if (session == nullptr) {
    return;
  }
  auto record = std::make_unique<SessionRecord>(options_.max_tombstones);
  const LayoutShape& target = session->peer_self.layout;
  const layout::SharedPart part = layout::shared_part(config_.self.layout, target);
  if (!part.is_empty()) {
    if (auto plan = layout::CopyPlan::make(config_.self.layout, target, part)) {
      record->plan = std::move(*plan);
    }
  }
  records_[started.epoch] = std::move(record);
}

void PrefillProtocol::session_over(const SessionOver& over) {
  const auto found = records_.find(over.epoch);
  if (found == records_.end()) {
    return;
  }
  SessionRecord& record = *found->second;
  record.over = true;
  // A room that ends takes its attempts away.
  std::vector<std::pair<AttemptId, SenderId>> attempts;
  record.attempts.for_each(
      [&](AttemptId attempt, SenderId sender) { attempts.emplace_back(attempt, sender); });
  for (const auto& [attempt, sender] : attempts) {
    PrefillRoom* room = find(sender);
    if (room == nullptr) {
      continue;
    }
    if (Target* target = room->find(over.epoch, attempt)) {
      target->session_over = true;
    }
    if (guards_.has(Guard::kEndedSessionFailsRooms)) {
      fail_room(*room, over.cause);
    }
  }
  for (auto it = unopened_.begin(); it != unopened_.end();) {
    unopened_count_ -= std::erase_if(
        it->second, [&](const UnopenedGrant& waiting) { return waiting.epoch == over.epoch; });
    if (it->second.empty()) {
      unopened_timers_.cancel(it->first);
      it = unopened_.erase(it);
    } else {
      ++it;
    }
  }
  drop_record_if_idle(over.epoch);
}

// A record outlives its session until the transport has settled every ticket.
void PrefillProtocol::drop_record_if_idle(SessionEpoch epoch) {
  const auto found = records_.find(epoch);
  if (found != records_.end() && found->second->over && found->second->writes.size() == 0 &&
      found->second->attempts.empty()) {
    records_.erase(found);
  }
}

void PrefillProtocol::deliver(MessageDelivered& delivered) {
  const SessionEpoch epoch = delivered.epoch;
  const auto record = records_.find(epoch);
  if (record == records_.end()) {
    return;
  }
  // The mark first: whatever the message is about, what lies below it is over.
  std::visit(
      [&](const auto& body) {
        if constexpr (requires { body.low_water_mark; }) {
          record->second->tombstones.raise_mark(body.low_water_mark);
        }
      },
      delivered.message);
  if (auto* grant = std::get_if<wire::Grant>(&delivered.message)) {
    handle(epoch, *grant);
  } else if (const auto* abort = std::get_if<wire::Abort>(&delivered.message)) {
    handle(epoch, *abort);
  } else if (const auto* consumed = std::get_if<wire::Consumed>(&delivered.message)) {
    handle(epoch, *consumed);
  } else if (const auto* fenced = std::get_if<wire::Fenced>(&delivered.message)) {
    handle(epoch, *fenced);
  } else {
    sink_->count("misdirected_messages");
  }
}

// --- small things ---

void PrefillProtocol::enter(PrefillRoom& room, RoomTrigger trigger) {
  const KvPoll from = room.status;
  sink_->transitioned(Machine::kRoom, static_cast<std::uint8_t>(from),
                      static_cast<std::uint8_t>(trigger));
  if (!room.apply(trigger)) {
    report_missing_row("room", to_string(from), to_string(trigger));
  }
  note_moved(room.sender.value(), from, room.status);
}

void PrefillProtocol::enter(Target& target, TargetTrigger trigger) {
  sink_->transitioned(Machine::kTarget, static_cast<std::uint8_t>(target.state),
                      static_cast<std::uint8_t>(trigger));
  if (!PrefillRoom::apply(target, trigger)) {
    report_missing_row("target", to_string(target.state), to_string(trigger));
  }
}

PrefillRoom* PrefillProtocol::find(SenderId sender) const {
  const auto* found = rooms_.find(sender);
  return found == nullptr ? nullptr : found->get();
}

PrefillRoom* PrefillProtocol::find(const RoomKey& key) {
  const auto found = open_.find(match(key));
  return found == open_.end() ? nullptr : find(found->second);
}

PrefillRoom* PrefillProtocol::find(const SessionRecord& record, AttemptId attempt) const {
  const SenderId* sender = record.attempts.find(attempt);
  return sender == nullptr ? nullptr : find(*sender);
}

Snapshot PrefillProtocol::snapshot(Instant now, std::size_t max_rooms_shown) const {
  Snapshot view;
  view.peers = sessions_.view(now);
  view.room_count = open_.size();
  view.oldest_room_ms = oldest_room_ms(now);
  view.held_pages_total = held_pages_total_;
  view.released_pages_total = released_pages_total_;
  for (const auto& [epoch, record] : records_) {
    view.tickets += record->writes.size();
    view.tombstones += record->tombstones.size();
  }
  rooms_.for_some(max_rooms_shown, [&](SenderId sender, const auto& room) {
    std::string targets;
    for (const auto& target : room->targets) {
      targets += targets.empty() ? "" : ",";
      targets += to_string(target->state);
    }
    view.rooms.push_back(RoomView{
        sender.value(), room->key.room, room->key.binding,
        room->targets.empty() ? AttemptId{} : room->targets.front()->grant.attempt,
        std::string(to_string(room->status)), targets,
        std::chrono::duration_cast<milliseconds>(now - room->opened).count(), room->page_count});
  });
  return view;
}

}  // namespace kvferry::core
