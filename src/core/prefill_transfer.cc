// Grants, writes, Done, Drained, and grants that wait for their sender.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/prefill_protocol.h"

namespace kvferry::core {
namespace {

// A refused write that was never claimed (its lane was lost) is posted again under a new ticket;
// one that is refused this often is refused for a reason.
constexpr std::uint8_t kMaxPostsOfOneRange = 3;

}  // namespace

// --- grants ---

void PrefillProtocol::handle(SessionEpoch epoch, wire::Grant& grant) {
  SessionRecord& record = *records_.at(epoch);
  if (record.tombstones.is_below_mark(grant.attempt)) {
    sink_->count("stale_messages");
    sessions_.send_once(epoch, wire::Stale{grant.attempt, wire::kind_tag(wire::Message(grant))},
                        *sink_, now_);
    return;
  }
  if (const Tombstone* tombstone = record.tombstones.find(grant.attempt)) {
    sink_->count("late_grants");
    if (tombstone->cause) {
      refuse_grant(epoch, grant, *tombstone->cause);
    }
    return;
  }
  if (record.attempts.contains(grant.attempt)) {
    sink_->count("duplicate_grants");
    return;
  }
  if (record.tombstones.is_full(record.attempts.size())) {
    refuse_grant(epoch, grant,
                 Failure{FailureCode::kTableFull,
                         FailureWhere::kLocal,
                         fmt::format("{} ended attempts are remembered (max_tombstones)",
                                     options_.max_tombstones),
                         {},
                         -1});
    return;
  }
  const RoomKey key{grant.room, grant.binding};
  if (PrefillRoom* room = find(key)) {
    attach(*room, epoch, std::move(grant));
  } else if (const Failure* cause = ended_.find(key)) {
    refuse_grant(epoch, grant, *cause);
  } else {
    wait_for_sender(epoch, std::move(grant));
  }
}

// Says no for good: the attempt is remembered, so that nothing later revives it.
void PrefillProtocol::refuse_grant(SessionEpoch epoch, const wire::Grant& grant,
                                   const Failure& cause) {
  SessionRecord& record = *records_.at(epoch);
  record.tombstones.add(grant.attempt, Tombstone{cause});
  sessions_.send(epoch, wire::Failed{grant.room, grant.binding, grant.attempt, with_rank(cause)},
                 Urgency::kUrgent, grant.attempt, now_, *sink_);
  sessions_.send(epoch, wire::Drained{grant.attempt, grant.slot, grant.generation, true},
                 Urgency::kUrgent, grant.attempt, now_, *sink_);
}

void PrefillProtocol::wait_for_sender(SessionEpoch epoch, wire::Grant grant) {
  if (unopened_count_ >= options_.max_unopened_grants) {
    sink_->count("unopened_grants_refused");
    refuse_grant(epoch, grant,
                 Failure{FailureCode::kTableFull,
                         FailureWhere::kLocal,
                         fmt::format("{} grants wait for their sender (max_unopened_grants)",
                                     options_.max_unopened_grants),
                         {},
                         -1});
    return;
  }
  const RoomKey key{grant.room, grant.binding};
  auto& waiting = unopened_[key];
  if (std::ranges::any_of(waiting, [&](const UnopenedGrant& other) {
        return other.epoch == epoch && other.grant.attempt == grant.attempt;
      })) {
    sink_->count("duplicate_grants");
    return;
  }
  waiting.push_back(UnopenedGrant{epoch, std::move(grant)});
  ++unopened_count_;
  if (!timers_.is_set({TimerKind::kUnopened, {}, key})) {
    timers_.set({TimerKind::kUnopened, {}, key},
                now_ + milliseconds(options_.unopened_room_timeout_ms));
  }
}

void PrefillProtocol::adopt_unopened(PrefillRoom& room) {
  const auto found = unopened_.find(room.key);
  if (found == unopened_.end()) {
    return;
  }
  std::vector<UnopenedGrant> waiting = std::move(found->second);
  unopened_.erase(found);
  unopened_count_ -= waiting.size();
  timers_.cancel({TimerKind::kUnopened, {}, room.key});
  for (UnopenedGrant& one : waiting) {
    if (room.is_terminal()) {
      refuse_grant(one.epoch, one.grant, *room.cause);
    } else {
      attach(room, one.epoch, std::move(one.grant));
    }
  }
}

void PrefillProtocol::drop_unopened(SessionEpoch epoch, AttemptId attempt) {
  for (auto it = unopened_.begin(); it != unopened_.end(); ++it) {
    const std::size_t dropped = std::erase_if(it->second, [&](const UnopenedGrant& waiting) {
      return waiting.epoch == epoch && waiting.grant.attempt == attempt;
    });
    if (dropped > 0) {
      unopened_count_ -= dropped;
      if (it->second.empty()) {
        timers_.cancel({TimerKind::kUnopened, {}, it->first});
        unopened_.erase(it);
      }
      return;
    }
  }
}

void PrefillProtocol::unopened_deadline(const RoomKey& key) {
  refuse_unopened(key, Failure{FailureCode::kRoomUnknown,
                               FailureWhere::kLocal,
                               fmt::format("no sender opened room {} within {} ms "
                                           "(unopened_room_timeout_ms)",
                                           key.room.value(), options_.unopened_room_timeout_ms),
                               {},
                               -1});
}

// The sender that these grants wait for will not come.
void PrefillProtocol::refuse_unopened(const RoomKey& key, const Failure& cause) {
  const auto found = unopened_.find(key);
  if (found == unopened_.end()) {
    return;
  }
  const std::vector<UnopenedGrant> waiting = std::move(found->second);
  unopened_.erase(found);
  unopened_count_ -= waiting.size();
  timers_.cancel({TimerKind::kUnopened, {}, key});
  for (const UnopenedGrant& one : waiting) {
    refuse_grant(one.epoch, one.grant, cause);
  }
}

Status PrefillProtocol::check_grant(const PrefillRoom& room, SessionEpoch epoch,
                                    const wire::Grant& grant) const {
  const Session* session = sessions_.find(epoch);
  const auto record = records_.find(epoch);
  if (session == nullptr || record == records_.end()) {
    return fail(FailureCode::kPeerLost, "the session of the grant has ended");
  }
  const std::string& peer = session->peer_self.control_endpoint;
  const auto refuse = [&](FailureCode code, std::string what) {
    return fail(code, std::move(what), FailureWhere::kPeer, peer);
  };
  if (!record->second->plan) {
    return refuse(FailureCode::kLayoutMismatch, "this rank holds nothing of what the grant is for");
  }
  if (grant.expected_grants == 0) {
    return refuse(FailureCode::kInvalidArgument, "the grant says that it is one of 0");
  }
  for (const auto& other : room.targets) {
    if (other->grant.decode_engine_epoch != grant.decode_engine_epoch) {
      return refuse(FailureCode::kEngineEpochMismatch,
                    "the grants are of two launches of the decode engine");
    }
    if (other->grant.expected_grants != grant.expected_grants ||
        other->grant.pages.size() != grant.pages.size() ||
        other->grant.decode_prefix_pages != grant.decode_prefix_pages) {
      return refuse(FailureCode::kDoneMismatch, "two decode ranks granted different amounts");
    }
  }
  if (room.initialized && grant.pages.size() != room.page_count) {
    return refuse(FailureCode::kDoneMismatch,
                  fmt::format("{} pages granted, the sender announced {}", grant.pages.size(),
                              room.page_count));
  }
  if (room.initialized && grant.aux_slot >= 0 && room.aux_slot < 0) {
    return refuse(FailureCode::kAuxInvalid, "decode expects aux, the sender has no aux slot");
  }
  for (const RegionShape& region : session->peer_self.layout.regions) {
    const bool is_page = region.kind != RegionKind::kAux && region.kind != RegionKind::kState;
    for (const PageIndex page : grant.pages) {
      if (is_page && page.value() >= region.item_count) {
        return refuse(FailureCode::kOutsideGrant,
                      fmt::format("granted page {} of {}", page.value(), region.item_count));
      }
    }
    if (region.kind == RegionKind::kAux &&
        grant.aux_slot >= static_cast<std::int64_t>(region.item_count)) {
      return refuse(FailureCode::kOutsideGrant,
                    fmt::format("granted aux slot {} of {}", grant.aux_slot, region.item_count));
    }
  }
  return {};
}

void PrefillProtocol::attach(PrefillRoom& room, SessionEpoch epoch, wire::Grant grant) {
  Status fits = check_grant(room, epoch, grant);
  if (room.has_all_grants()) {
    fits = fail(FailureCode::kDoneMismatch,
                fmt::format("more grants than the {} that decode announced", room.targets.size()),
                FailureWhere::kPeer);
  }
  if (!fits) {
    refuse_grant(epoch, grant, fits.error());
    fail_room(room, fits.error());
    return;
  }
  SessionRecord& record = *records_.at(epoch);
  record.attempts.emplace(grant.attempt, room.sender);
  auto target = std::make_unique<Target>();
  target->epoch = epoch;
  target->grant = std::move(grant);
  target->plan = &*record.plan;
  room.targets.push_back(std::move(target));
  if (!room.has_all_grants()) {
    return;
  }
  sink_->publish_prefix(room.sender, room.targets.front()->grant.decode_prefix_pages);
  enter(room, RoomTrigger::kPeersReady);
  sink_->publish_status(room.sender.value(), room.status);
  set_deadline(room, options_.input_timeout_ms);
  pump(room);
}

// --- writes ---

// Posts whatever has become possible: both the pages and every grant are here.
void PrefillProtocol::pump(PrefillRoom& room) {
  if (room.is_terminal() || !room.initialized || !room.has_all_grants() || !room.chunk_given) {
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
  if (target.posted_all) {
    return;
  }
  std::vector<layout::ByteCopy> copies;
  for (; target.posted_pages < room.given.size(); ++target.posted_pages) {
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
  if (copies.empty()) {
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
  }
  target.outstanding += order.writes.size();
  sink_->post_writes(std::move(order));
}

void PrefillProtocol::on(WritesCompleted& event) {
  for (const layout::WriteCompletion& completion : event.completions) {
    completed(completion);
  }
}

void PrefillProtocol::completed(const layout::WriteCompletion& completion) {
  const auto found = records_.find(completion.session);
  TrackedWrite* tracked =
      found == records_.end() ? nullptr : found->second->writes.find(completion.ticket);
  if (tracked == nullptr || tracked->unknown) {
    sink_->count("late_completions");
    return;
  }
  SessionRecord& record = *found->second;
  PrefillRoom* room = find(tracked->sender);
  Target* target = room == nullptr ? nullptr
                                   : room->find(completion.session, tracked->write.slot,
                                                tracked->write.generation);
  switch (completion.outcome) {
    case layout::WriteOutcome::kLanded: {
      const std::uint64_t bytes = tracked->write.length;
      if (target != nullptr) {
        ++target->landed_writes;
        target->landed_bytes += bytes;
        std::uint64_t landed = 0;
        for (const auto& each : room->targets) {
          landed += each->landed_bytes;
        }
        sink_->publish_landed_bytes(room->sender, landed);
      }
      settle_ticket(record, target, room, completion.ticket);
      return;
    }
    case layout::WriteOutcome::kRefused: {
      const TrackedWrite copy = *tracked;
      if (target != nullptr && !room->is_terminal()) {
        repost_or_fail(*room, *target, copy);
      }
      settle_ticket(record, target, room, completion.ticket);
      return;
    }
    case layout::WriteOutcome::kUnknown:
      tracked->unknown = true;
      sink_->count("unknown_writes");
      if (room != nullptr && !room->is_terminal()) {
        fail_room(*room, Failure{FailureCode::kWriteUnknown,
                                 FailureWhere::kPath,
                                 fmt::format("the outcome of a write of {} bytes is not known by "
                                             "its deadline (write_timeout_ms {})",
                                             tracked->write.length, options_.write_timeout_ms),
                                 {},
                                 -1});
      }
      if (target != nullptr) {
        target->has_unknown = true;
        if (target->fenced) {
          settle_ticket(record, target, room, completion.ticket);
        }
      }
      return;
  }
}

// The range was never claimed, so a new ticket may take it (rule 5); a fenced grant refuses that
// one, too, and its Abort is on the way.
void PrefillProtocol::repost_or_fail(PrefillRoom& room, Target& target, TrackedWrite tracked) {
  SessionRecord& record = *records_.at(target.epoch);
  if (tracked.posts >= kMaxPostsOfOneRange || record.over) {
    fail_room(room, Failure{FailureCode::kWriteRefused,
                            FailureWhere::kPeer,
                            fmt::format("the target refused a write of {} bytes to item {} of "
                                        "region {} {} times",
                                        tracked.write.length, tracked.write.target_item,
                                        tracked.write.target_region.value(), tracked.posts),
                            {},
                            -1});
    return;
  }
  sink_->count("writes_posted_again");
  tracked.write.ticket = record.writes.next_ticket();
  ++tracked.posts;
  record.writes.add(tracked);
  ++target.outstanding;
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
void PrefillProtocol::commit_if_landed(PrefillRoom& room, Target& target) {
  if (room.is_terminal() || target.state != TargetState::kPosting || !target.posted_all ||
      target.outstanding > 0) {
    return;
  }
  enter(target, TargetTrigger::kAllLanded);
  if (!config_.transport_class.target_executes_copy) {
    sessions_.send(target.epoch,
                   wire::Progress{target.grant.attempt, target.grant.slot, target.grant.generation,
                                  0, room.page_count},
                   Urgency::kNormal, target.grant.attempt, now_, *sink_);
  }
  wire::Done done;
  done.room = room.key.room;
  done.binding = room.key.binding;
  done.attempt = target.grant.attempt;
  done.prefill_engine_epoch = config_.self.engine_epoch;
  done.slot = target.grant.slot;
  done.generation = target.grant.generation;
  done.writes = target.landed_writes;
  done.bytes = target.landed_bytes;
  done.pages = room.page_count;
  sessions_.send(target.epoch, std::move(done), Urgency::kNormal, target.grant.attempt, now_,
                 *sink_);
  release_if_settled(room);
}

void PrefillProtocol::drain_if_settled(PrefillRoom& room, Target& target) {
  if (!room.is_terminal() || target.outstanding > 0) {
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
        Urgency::kUrgent, target.grant.attempt, now_, *sink_);
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
    PrefillRoom* room = find(key);
    if (room != nullptr) {
      fail_room(*room, std::move(cause));
    } else {
      ended_.add(key, cause);
      refuse_unopened(key, cause);
    }
    return;
  }
  const auto found = record.attempts.find(abort.attempt);
  PrefillRoom* room = found == record.attempts.end() ? nullptr : find(found->second);
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
  if (record.tombstones.find(abort.attempt) == nullptr) {
    record.tombstones.add(abort.attempt, Tombstone{cause});
    if (PrefillRoom* waiting = find(key)) {
      fail_room(*waiting, std::move(cause));
    } else {
      ended_.add(key, cause);
      refuse_unopened(key, cause);
    }
  }
  say_drained(epoch, abort);
}

void PrefillProtocol::say_drained(SessionEpoch epoch, const wire::Abort& abort) {
  sessions_.send(epoch, wire::Drained{abort.attempt, abort.slot, abort.generation, true},
                 Urgency::kUrgent, abort.attempt, now_, *sink_);
}

void PrefillProtocol::handle(SessionEpoch epoch, const wire::Consumed& consumed) {
  const SessionRecord& record = *records_.at(epoch);
  const auto found = record.attempts.find(consumed.attempt);
  PrefillRoom* room = found == record.attempts.end() ? nullptr : find(found->second);
  Target* target = room == nullptr ? nullptr : room->find(epoch, consumed.attempt);
  if (target == nullptr || target->state != TargetState::kDone) {
    sink_->count("stale_messages");
    return;
  }
  enter(*target, TargetTrigger::kConsumed);
  finish_if_consumed(*room);
}

// The fence ends every read of the source, too: what is still under way will land nowhere, and what
// is unknown needs no other end (D2).
void PrefillProtocol::handle(SessionEpoch epoch, const wire::Fenced& fenced) {
  SessionRecord& record = *records_.at(epoch);
  const auto found = record.attempts.find(fenced.attempt);
  PrefillRoom* room = found == record.attempts.end() ? nullptr : find(found->second);
  Target* target = room == nullptr ? nullptr : room->find(epoch, fenced.attempt);
  if (target == nullptr || !room->is_terminal()) {
    return;
  }
  target->fenced = true;
  const bool all_fenced = std::ranges::all_of(
      room->targets, [](const auto& each) { return each->fenced || each->outstanding == 0; });
  if (all_fenced) {
    room->gave_up = true;
    release_source(*room);
  }
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
