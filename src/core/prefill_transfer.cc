// Writes, Done, Drained, and what decode says of a grant.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/prefill_protocol.h"

namespace kvferry::core {
namespace {

// A refused write that was never claimed (its lane was lost) is posted again under a new ticket;
// one that is refused this often is refused for a reason.
constexpr std::uint8_t kMaxPostsOfOneRange = 3;

// how: goes on after "the target refused the write".
Failure refusal_of(const TrackedWrite& tracked, std::string_view how) {
  const layout::Write& write = tracked.write;
  return Failure{FailureCode::kWriteRefused,
                 FailureWhere::kPeer,
                 fmt::format("the target refused a write of {} bytes to item {} of region {} {}",
                             write.length, write.target_item, write.target_region.value(), how),
                 {},
                 -1};
}

}  // namespace

// --- writes ---

// Posts whatever has become possible: both the pages and every grant are here.
void PrefillProtocol::pump(PrefillRoom& room) {
  if (room.is_terminal() || !room.initialized || !has_needed_grants(room) || !room.chunk_given) {
    return;
  }
  if (room.status == KvPoll::kWaitingForInput) {
    enter(room, RoomTrigger::kStarted);
    sink_->publish_status(room.sender.value(), room.status);
    set_deadline(room, options_.transfer_timeout_ms);
  }
  for (const auto& target : room.targets) {
    post_ready(room, *target);
    commit_if_landed(room, *target);
    if (room.is_terminal()) {
      return;
    }
  }
}

void PrefillProtocol::post_ready(PrefillRoom& room, Target& target) {
  if (target.posted_all || target.fenced) {
    return;
  }
  std::vector<layout::ByteCopy> copies;
  const std::size_t pages = std::min(room.given.size(), target.grant.pages.size());
  const std::size_t pages_left = pages - std::min<std::size_t>(pages, target.posted_pages);
  copies.reserve(pages_left * target.plan->writes_per_page() + 1);
  for (; target.posted_pages < pages; ++target.posted_pages) {
    target.plan->expand_page(room.given[target.posted_pages],
                             target.grant.pages[target.posted_pages], copies);
  }
  if (room.has_all_chunks()) {
    target.posted_all = true;
    if (target.grant.aux_slot >= 0) {
      target.plan->expand_aux(static_cast<std::uint32_t>(room.aux_slot),
                              static_cast<std::uint32_t>(target.grant.aux_slot), copies);
    }
    const std::size_t states = std::min(room.state_slots.size(), target.grant.state_slots.size());
    for (std::size_t i = 0; i < states; ++i) {
      target.plan->expand_state(room.state_slots[i], target.grant.state_slots[i], copies);
    }
  }
  if (target.state == TargetState::kGranted) {
    enter(target, TargetTrigger::kFirstPost);
  }
  post(room, target, copies);
}

void PrefillProtocol::post(PrefillRoom& room, Target& target,
                           const std::vector<layout::ByteCopy>& copies) {
  if (copies.empty() || target.session_over) {
    return;
  }
  SessionRecord& record = *records_.at(target.epoch);
  PostWrites order{target.epoch, {}};
  order.writes.reserve(copies.size());
  for (const layout::ByteCopy& copy : copies) {
    layout::Write write;
    write.ticket = record.writes.next_ticket();
    write.slot = target.grant.slot;
    write.generation = target.grant.generation;
    write.source_region = copy.source_region;
    write.source_offset = copy.source_offset;
    write.target_region = copy.target_region;
    write.target_item = copy.target_item;
    write.offset_in_item = copy.offset_in_item;
    write.length = copy.length;
    record.writes.add(TrackedWrite{room.sender, write});
    order.writes.push_back(write);
    ++target.posted_writes;
    target.posted_bytes += write.length;
  }
  target.outstanding += order.writes.size();
  check_source(room);
  sink_->post_writes(std::move(order));
}

void PrefillProtocol::on(WritesCompleted& event) {
  SenderId last;
  for (const layout::WriteCompletion& completion : event.completions) {
    const SenderId sender = completed(completion);
    if (sender != last) {
      publish_landed_bytes(last);
    }
    last = sender;
  }
  publish_landed_bytes(last);
}

void PrefillProtocol::publish_landed_bytes(SenderId sender) {
  if (const PrefillRoom* room = find(sender)) {
    std::uint64_t landed = 0;
    for (const auto& target : room->targets) {
      landed += target->landed_bytes;
    }
    sink_->publish_landed_bytes(sender, landed);
  }
}

// Returns whose write it was, if it was anybody's.
SenderId PrefillProtocol::completed(const layout::WriteCompletion& completion) {
  const auto found = records_.find(completion.session);
  TrackedWrite* tracked =
      found == records_.end() ? nullptr : found->second->writes.find(completion.ticket);
  if (tracked == nullptr || tracked->unknown) {
    sink_->count("late_completions");
    return {};
  }
  SessionRecord& record = *found->second;
  const SenderId sender = tracked->sender;
  PrefillRoom* room = find(sender);
  Target* target = room == nullptr ? nullptr
                                   : room->find(completion.session, tracked->write.slot,
                                                tracked->write.generation);
  switch (completion.outcome) {
    case layout::WriteOutcome::kLanded: {
      const std::uint64_t bytes = tracked->write.length;
      if (target != nullptr) {
        ++target->landed_writes;
        target->landed_bytes += bytes;
      }
      settle_ticket(record, target, room, completion.ticket);
      break;
    }
    case layout::WriteOutcome::kRefused: {
      const TrackedWrite copy = *tracked;
      const bool matters = target != nullptr && !room->is_terminal() && !target->fenced;
      if (matters && completion.fenced) {
        await_first_cause(*room, refusal_of(copy, "since its grant is over"));
      } else if (matters) {
        repost_or_fail(*room, *target, copy);
      }
      settle_ticket(record, target, room, completion.ticket);
      break;
    }
    case layout::WriteOutcome::kUnknown:
      unknown(*tracked, completion.torn, record, room, target);
      break;
  }
  return sender;
}

// Rule 2: neither landed nor refused, so it is not posted again, and it stays outstanding.
void PrefillProtocol::unknown(TrackedWrite& tracked, bool torn, SessionRecord& record,
                              PrefillRoom* room, Target* target) {
  const TicketId ticket = tracked.write.ticket;
  sink_->count("unknown_writes");
  if (!guards_.has(Guard::kUnknownNotReposted) && target != nullptr && !room->is_terminal()) {
    if (!target->fenced) {
      repost_or_fail(*room, *target, tracked);
    }
    settle_ticket(record, target, room, ticket);
    return;
  }
  tracked.unknown = true;
  if (room != nullptr && !room->is_terminal()) {
    Failure cause{torn ? FailureCode::kWriteTorn : FailureCode::kWriteUnknown,
                  FailureWhere::kPath,
                  torn ? fmt::format("a write of {} bytes to item {} of region {} stopped in "
                                     "the middle",
                                     tracked.write.length, tracked.write.target_item,
                                     tracked.write.target_region.value())
                       : fmt::format("the outcome of a write of {} bytes is not known by its "
                                     "deadline (write_timeout_ms {})",
                                     tracked.write.length, options_.write_timeout_ms),
                  {},
                  -1};
    if (torn && config_.transport_class.target_executes_copy) {
      await_first_cause(*room, std::move(cause));
    } else {
      fail_room(*room, std::move(cause));
    }
  }
  if (target != nullptr) {
    target->has_unknown = true;
    if (target->fenced || !guards_.has(Guard::kUnknownUntilQuiet)) {
      settle_ticket(record, target, room, ticket);
    }
  }
}

// Who executes the copy knows why it did not land: it tore, for which decode has failed the room,
// or the room had failed before and was fenced, perhaps in mid-copy. Either way decode's Abort is
// on its way and has the first cause. It is said again until it is acknowledged, or the session is
// over.
void PrefillProtocol::await_first_cause(PrefillRoom& room, Failure own_cause) {
  if (room.own_cause) {
    return;
  }
  room.own_cause = std::move(own_cause);
  timers_.cancel({TimerKind::kSlow, room.sender});
  room.deadline = std::min(room.deadline, now_ + milliseconds(options_.session_grace_ms));
  timers_.set({TimerKind::kRoom, room.sender}, room.deadline);
}

// The range was never claimed, so a new ticket may take it (rule 5).
void PrefillProtocol::repost_or_fail(PrefillRoom& room, Target& target, TrackedWrite tracked) {
  SessionRecord& record = *records_.at(target.epoch);
  if (tracked.posts >= kMaxPostsOfOneRange || record.over) {
    fail_room(room, refusal_of(tracked, fmt::format("{} times", tracked.posts)));
    return;
  }
  sink_->count("writes_posted_again");
  tracked.write.ticket = record.writes.next_ticket();
  ++tracked.posts;
  record.writes.add(tracked);
  ++target.outstanding;
  check_source(room);
  sink_->post_writes(PostWrites{target.epoch, {tracked.write}});
}

void PrefillProtocol::on(WritesQuiet& event) {
  for (const TicketId ticket : event.tickets) {
    // Looked up each time: the last ticket of an ended session takes its record away.
    const auto found = records_.find(event.session);
    if (found == records_.end()) {
      return;
    }
    SessionRecord& record = *found->second;
    const TrackedWrite* tracked = record.writes.find(ticket);
    if (tracked == nullptr) {
      continue;
    }
    PrefillRoom* room = find(tracked->sender);
    Target* target =
        room == nullptr ? nullptr
                        : room->find(event.session, tracked->write.slot, tracked->write.generation);
    settle_ticket(record, target, room, ticket);
    drop_record_if_idle(event.session);
  }
}

void PrefillProtocol::settle_ticket(SessionRecord& record, Target* target, PrefillRoom* room,
                                    TicketId ticket) {
  record.writes.settle(ticket);
  if (target == nullptr) {
    return;
  }
  --target->outstanding;
  const SessionEpoch epoch = target->epoch;
  const SenderId sender = room->sender;
  commit_if_landed(*room, *target);
  drain_if_settled(*room, *target);
  release_if_settled(*room);
  forget_if_over(sender);
  drop_record_if_idle(epoch);
}

// Done is the commit (rule 5): every ticket of this writer under the grant has landed while its
// source was held.
bool PrefillProtocol::may_commit(const PrefillRoom& room, const Target& target) const {
  const bool waits = target.outstanding > 0 && guards_.has(Guard::kDoneAfterLanded);
  if (!target.posted_all || waits || target.fenced || target.has_unknown || room.own_cause) {
    return false;
  }
  if (room.is_terminal()) {
    return !guards_.has(Guard::kNoDoneAfterEnd) && target.landed_bytes == target.posted_bytes;
  }
  return target.state == TargetState::kPosting;
}

void PrefillProtocol::commit_if_landed(PrefillRoom& room, Target& target) {
  if (!may_commit(room, target)) {
    return;
  }
  if (target.state == TargetState::kPosting) {
    enter(target, TargetTrigger::kAllLanded);
  }
  const bool landed = guards_.has(Guard::kDoneAfterLanded);
  if (!config_.transport_class.target_executes_copy) {
    sessions_.send(target.epoch,
                   wire::Progress{target.grant.attempt, target.grant.slot, target.grant.generation,
                                  0, room.page_count},
                   Urgency::kNormal, OwnerId{}, now_, *sink_);
  }
  wire::Done done;
  done.room = room.key.room;
  done.binding = room.key.binding;
  done.attempt = target.grant.attempt;
  done.prefill_engine_epoch = config_.self.engine_epoch;
  done.slot = target.grant.slot;
  done.generation = target.grant.generation;
  done.writes = landed ? target.landed_writes : target.posted_writes;
  done.bytes = landed ? target.landed_bytes : target.posted_bytes;
  done.pages = room.page_count;
  sessions_.send(target.epoch, done, Urgency::kNormal, OwnerId{}, now_, *sink_);
  if (!guards_.has(Guard::kSuccessOnConsumed)) {
    finish_if_consumed(room);
  }
  release_if_settled(room);
}

void PrefillProtocol::drain_if_settled(PrefillRoom& room, Target& target) {
  const bool waits = target.outstanding > 0 && guards_.has(Guard::kDrainedAfterSettled);
  if (!room.is_terminal() || waits) {
    return;
  }
  if (target.state == TargetState::kGivenUp) {
    enter(target, TargetTrigger::kSettled);
  }
  if (target.state == TargetState::kDrained && !target.drained_sent) {
    target.drained_sent = true;
    sessions_.send(
        target.epoch,
        wire::Drained{target.grant.attempt, target.grant.slot, target.grant.generation, true},
        Urgency::kUrgent, OwnerId{}, now_, *sink_);
  }
}

// --- what decode says ---

void PrefillProtocol::handle(SessionEpoch epoch, const wire::Abort& abort) {
  SessionRecord& record = *records_.at(epoch);
  Failure cause = abort.cause;
  cause.where = FailureWhere::kPeer;
  if (const Peer* peer = sessions_.peer_of(epoch)) {
    cause.peer = peer->address.endpoint;
  }
  const RoomKey key{abort.room, abort.binding};
  if (abort.attempt == AttemptId{}) {
    // No grant was given: room and binding name the request.
    end_request(key, cause);
    return;
  }
  PrefillRoom* room = find(record, abort.attempt);
  Target* target = room == nullptr ? nullptr : room->find(epoch, abort.attempt);
  if (target != nullptr) {
    target->abort_seen = true;
    const SenderId sender = room->sender;
    fail_room(*room, std::move(cause));
    forget_if_over(sender);
    return;
  }
  // Its grant never came, waits for its sender, or belongs to a sender that is over: nothing of it
  // will be written, and decode is told so.
  drop_unopened(epoch, abort.attempt);
  if (guards_.has(Guard::kTombstone) && record.tombstones.find(abort.attempt) == nullptr) {
    record.tombstones.add(abort.attempt, cause);
    end_request(key, cause);
  }
  say_drained(epoch, abort);
}

void PrefillProtocol::say_drained(SessionEpoch epoch, const wire::Abort& abort) {
  sessions_.send(epoch, wire::Drained{abort.attempt, abort.slot, abort.generation, true},
                 Urgency::kUrgent, OwnerId{}, now_, *sink_);
}

void PrefillProtocol::handle(SessionEpoch epoch, const wire::Consumed& consumed) {
  const SessionRecord& record = *records_.at(epoch);
  PrefillRoom* room = find(record, consumed.attempt);
  Target* target = room == nullptr ? nullptr : room->find(epoch, consumed.attempt);
  if (target == nullptr || target->state != TargetState::kDone) {
    sink_->count("stale_messages");
    return;
  }
  enter(*target, TargetTrigger::kConsumed);
  finish_if_consumed(*room);
}

// Decode fences an attempt that failed. The word of it may come before its Abort, which is on the
// way then: until that comes nothing more is posted or committed.
void PrefillProtocol::handle(SessionEpoch epoch, const wire::Fenced& fenced) {
  SessionRecord& record = *records_.at(epoch);
  PrefillRoom* room = find(record, fenced.attempt);
  Target* target = room == nullptr ? nullptr : room->find(epoch, fenced.attempt);
  if (target == nullptr) {
    return;
  }
  target->fenced = true;
  release_if_fenced(*room);
  if (!target->has_unknown) {
    return;
  }
  const SenderId sender = room->sender;
  const GrantSlot slot = target->grant.slot;
  const Generation generation = target->grant.generation;
  for (const TicketId ticket : record.writes.unknown_under(slot, generation)) {
    // Looked up each time: the last ticket takes a cleared sender away.
    room = find(sender);
    settle_ticket(record, room == nullptr ? nullptr : room->find(epoch, slot, generation), room,
                  ticket);
  }
}

}  // namespace kvferry::core
