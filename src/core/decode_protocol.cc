#include "core/decode_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvferry::core {

std::unique_ptr<Protocol> make_decode_protocol(ProtocolConfig config, Environment& environment) {
  return std::make_unique<DecodeProtocol>(std::move(config), environment);
}

DecodeProtocol::DecodeProtocol(ProtocolConfig config, Environment& environment)
    : RoleProtocol(std::move(config), environment), ledger_(guards_), timers_(guards_) {}

void DecodeProtocol::settle(Event& event) {
  std::visit([this](auto& fact) { on(fact); }, event);
}

bool DecodeProtocol::run_due_timer() {
  const auto key = timers_.pop_due(now_);
  if (!key) {
    return false;
  }
  DecodeRoom* room = find(key->receiver);
  if (room == nullptr) {
    return true;
  }
  if (key->kind == TimerKind::kRoom) {
    room_deadline(*room);
  } else if (key->kind == TimerKind::kSlow) {
    note_slow(room->key, room->attempt, room->status, room->waits_for(), room->deadline_ms);
    timers_.set({TimerKind::kRoom, room->receiver}, room->deadline);
  } else {
    fence_overdue(*room);
  }
  return true;
}

// --- rooms ---

void DecodeProtocol::on(ReceiverOpened& event) {
  const RoomKey key{event.room, event.binding};
  auto owned = std::make_unique<DecodeRoom>(event.receiver, key, now_);
  DecodeRoom& room = *owned;
  rooms_.emplace(event.receiver, std::move(owned));
  note_opened(event.receiver.value());
  std::optional<Failure> refusal = refuse_room(key, open_.contains(match(key)), open_.size());
  if (!refusal) {
    refusal = refuse_in_quarantine();
  }
  if (refusal) {
    room.cause = with_rank(*refusal);
    enter(room, RoomTrigger::kFailed);
    sink_->publish_terminal(event.receiver.value(), KvPoll::kFailed, room.cause);
    return;
  }
  open_.emplace(match(key), event.receiver);
  set_deadline(room, options_.bootstrap_timeout_ms);
}

// Rule 6.
std::optional<Failure> DecodeProtocol::refuse_in_quarantine() const {
  if (!guards_.has(Guard::kQuarantineCap) ||
      ledger_.quarantined_pages() < options_.quarantine_max_pages) {
    return std::nullopt;
  }
  return Failure{FailureCode::kQuarantineFull,
                 FailureWhere::kLocal,
                 fmt::format("{} pages are in quarantine (quarantine_max_pages {})",
                             ledger_.quarantined_pages(), options_.quarantine_max_pages),
                 {},
                 -1};
}

void DecodeProtocol::on(PrefillNamed& event) {
  if (DecodeRoom* room = find(event.receiver); room != nullptr && !room->is_terminal()) {
    room->resolving = true;
    sink_->resolve_prefill(ResolvePrefill{event.receiver, std::move(event.bootstrap_address),
                                          std::move(event.instance), event.dp_rank,
                                          room->key.room});
  }
}

void DecodeProtocol::on(PrefillResolved& event) {
  DecodeRoom* room = find(event.receiver);
  if (room == nullptr || !room->interests.empty()) {
    return;
  }
  room->resolving = false;
  if (room->is_terminal()) {
    // It was aborted meanwhile; its senders may be open already, and only now it is known who they
    // are.
    for (const PeerRow& row : event.rows ? *event.rows : std::vector<PeerRow>{}) {
      if (const Session* session = sessions_.live_session_at(row.address)) {
        send(*room, session->epoch,
             wire::Abort{room->key.room, room->key.binding, {}, {}, {}, {}, *room->cause},
             Urgency::kUrgent);
      }
    }
    forget_if_over(event.receiver);
    return;
  }
  if (!event.rows) {
    fail_room(*room, event.rows.error());
    return;
  }
  for (const PeerRow& row : *event.rows) {
    const auto peer = sessions_.want_peer(row.address, now_, *sink_);
    if (!peer) {
      fail_room(*room, Failure{FailureCode::kTableFull,
                               FailureWhere::kLocal,
                               fmt::format("{} peers are known (max_peers)", options_.max_peers),
                               {},
                               -1});
      return;
    }
    sessions_.add_interest(*peer, now_);
    room->interests.push_back(*peer);
    if (const Peer* known = sessions_.peer(*peer); known->unusable) {
      fail_room(*room, known->last_cause);
      return;
    }
  }
  advance_bootstrap(*room);
}

void DecodeProtocol::on(PairsWanted& event) {
  std::vector<PeerAddress> addresses;
  addresses.reserve(event.rows.size());
  for (const PeerRow& row : event.rows) {
    addresses.push_back(row.address);
  }
  sessions_.set_paired(addresses, now_, *sink_);
}

void DecodeProtocol::on(MetadataGiven& event) {
  DecodeRoom* room = find(event.receiver);
  if (room == nullptr || room->is_terminal() || room->metadata.has_value()) {
    // The room ended while the call was under way (or was given pages twice): they go back, but
    // for what its caller listed by mistake and is in somebody's grant.
    GrantedPages back = ledger_.not_granted(
        GrantedPages{std::move(event.pages), event.aux_slot, std::move(event.state_slots)});
    sink_->release_pages(ReleasePages{event.receiver.value(), room ? room->key.room : RoomId{},
                                      room ? room->key.binding : Binding{}, std::move(back.pages),
                                      back.aux_slot, std::move(back.state_slots)});
    return;
  }
  room->metadata = std::move(event);
  if (room->status == KvPoll::kWaitingForInput) {
    grant(*room);
  }
}

void DecodeProtocol::on(ReceiverAborted& event) {
  if (DecodeRoom* room = find(event.receiver)) {
    fail_room(*room, std::move(event.cause));
  }
}

void DecodeProtocol::on(ReceiverCleared& event) {
  DecodeRoom* room = find(event.receiver);
  if (room == nullptr) {
    return;
  }
  fail_room(
      *room,
      Failure{FailureCode::kAborted, FailureWhere::kLocal, "the caller cleared the room", {}, -1});
  room = find(event.receiver);
  room->cleared = true;
  if (event.unread_success) {
    sink_->release_pages(ReleasePages{room->receiver.value(), room->key.room, room->key.binding,
                                      std::move(room->owned.pages), room->owned.aux_slot,
                                      std::move(room->owned.state_slots)});
  }
  forget_if_over(event.receiver);
}

void DecodeProtocol::on(StopRequested& event) {
  stopping_ = event.cause;
  std::vector<ReceiverId> live;
  live.reserve(open_.size());
  for (const auto& [key, receiver] : open_) {
    live.push_back(receiver);
  }
  for (const ReceiverId receiver : live) {
    fail_room(*find(receiver), event.cause);
  }
  sessions_.flush(now_, *sink_);
  sessions_.end_all(event.cause, now_, *sink_);
}

// Every prefill rank's session is there: the room knows who writes what.
void DecodeProtocol::advance_bootstrap(DecodeRoom& room) {
  if (room.status != KvPoll::kBootstrapping || room.interests.empty()) {
    return;
  }
  std::vector<const Session*> live;
  live.reserve(room.interests.size());
  room.sessions_missing = 0;
  for (const PeerId peer : room.interests) {
    const Session* session = sessions_.live_session_of(peer);
    if (session == nullptr) {
      ++room.sessions_missing;
      continue;
    }
    live.push_back(session);
  }
  if (room.sessions_missing > 0) {
    return;
  }
  const Result<const ReplicaPlan*> plan = plan_replica(live);
  if (!plan) {
    fail_room(room, plan.error());
    return;
  }
  room.writers.clear();
  room.writers.reserve((*plan)->size());
  for (const auto& [part, copies] : **plan) {
    const Session& session = *live[part.source_index];
    if (guards_.has(Guard::kPrefillEngineEpoch) &&
        session.peer_self.engine_epoch != live.front()->peer_self.engine_epoch) {
      fail_room(room, Failure{FailureCode::kEngineEpochMismatch, FailureWhere::kPeer,
                              "the prefill ranks are of two launches of their engine",
                              session.peer_self.control_endpoint, -1});
      return;
    }
    Writer writer;
    writer.peer = room.interests[part.source_index];
    writer.epoch = session.epoch;
    writer.part = part;
    writer.plan = copies;
    room.writers.push_back(std::move(writer));
  }
  enter(room, RoomTrigger::kPeersReady);
  sink_->publish_status(room.receiver.value(), room.status);
  set_deadline(room, options_.input_timeout_ms);
  if (room.metadata) {
    grant(room);
  }
}

// Alike for every room with the same sessions; a session's layouts never change.
Result<const DecodeProtocol::ReplicaPlan*> DecodeProtocol::plan_replica(
    const std::vector<const Session*>& live) {
  std::vector<SessionEpoch> epochs;
  epochs.reserve(live.size());
  for (const Session* session : live) {
    epochs.push_back(session->epoch);
  }
  if (const auto known = replica_plans_.find(epochs); known != replica_plans_.end()) {
    return &known->second;
  }
  std::vector<LayoutShape> shapes;
  shapes.reserve(live.size());
  for (const Session* session : live) {
    shapes.push_back(session->peer_self.layout);
  }
  const auto writers = layout::writers_for(config_.self.layout, shapes);
  if (!writers) {
    return tl::unexpected(writers.error());
  }
  ReplicaPlan plan;
  for (const layout::Writer& writer : *writers) {
    auto copies =
        layout::CopyPlan::make(shapes[writer.source_index], config_.self.layout, writer.part);
    if (!copies) {
      return tl::unexpected(copies.error());
    }
    plan.emplace_back(writer, std::make_shared<const layout::CopyPlan>(std::move(*copies)));
  }
  return &replica_plans_.emplace(std::move(epochs), std::move(plan)).first->second;
}

void DecodeProtocol::set_deadline(DecodeRoom& room, std::uint32_t after_ms) {
  room.deadline_ms = after_ms;
  if (!guards_.has(Guard::kEveryStateHasADeadline) && room.status == KvPoll::kBootstrapping) {
    return;
  }
  // One timer at a time: most rooms are over before a quarter of their time is.
  timers_.cancel({TimerKind::kRoom, room.receiver});
  room.deadline = now_ + milliseconds(after_ms);
  timers_.set({TimerKind::kSlow, room.receiver}, now_ + milliseconds(after_ms) / 4);
}

void DecodeProtocol::cancel_deadline(const DecodeRoom& room) {
  timers_.cancel({TimerKind::kRoom, room.receiver});
  timers_.cancel({TimerKind::kSlow, room.receiver});
}

void DecodeProtocol::room_deadline(DecodeRoom& room) {
  Failure cause{FailureCode::kRoomTimeout,
                FailureWhere::kLocal,
                fmt::format("no end of {} by its deadline, waiting for {}", to_string(room.status),
                            room.waits_for()),
                {},
                -1};
  for (const PeerId peer : room.interests) {
    if (room.status == KvPoll::kBootstrapping && sessions_.live_session_of(peer) == nullptr) {
      const Peer* missing = sessions_.peer(peer);
      cause.code = FailureCode::kPeerUnreachable;
      cause.where = FailureWhere::kPath;
      if (missing != nullptr) {
        cause.peer = missing->address.endpoint;
        cause.what += "; the last cause: " + missing->last_cause.what;
      }
      break;
    }
  }
  fail_room(room, std::move(cause));
}

// Rule 1: the caller hears of it at once; the pages leave when they are safe.
void DecodeProtocol::fail_room(DecodeRoom& room, Failure cause) {
  if (room.is_terminal()) {
    return;
  }
  room.cause = with_rank(std::move(cause));
  enter(room, RoomTrigger::kFailed);
  sink_->publish_terminal(room.receiver.value(), KvPoll::kFailed, room.cause);
  open_.erase(match(room.key));
  cancel_deadline(room);
  tell_writers_of_failure(room);
  drop_interests(room);
  switch (room.grant_state) {
    case GrantState::kGranted:
    case GrantState::kCovered:
      enter(room, GrantTrigger::kRevoke);
      ledger_.revoke(room.grant, now_);
      if (!guards_.has(Guard::kPagesLeaveLate)) {
        enter(room, GrantTrigger::kFenceDone);  // of a fence that nobody asked for
        release(room);
        break;
      }
      start_fence(room);
      release_if_quiet(room);
      break;
    case GrantState::kNone:
      if (!room.metadata) {
        break;
      }
      [[fallthrough]];
    case GrantState::kFenced:
    case GrantState::kQuiet:
      release(room);
      break;
    default:
      break;
  }
  leave_open_attempts(room);
  forget_if_over(room.receiver);
}

void DecodeProtocol::tell_writers_of_failure(DecodeRoom& room) {
  const bool granted = room.grant_state != GrantState::kNone;
  wire::Abort abort;
  abort.room = room.key.room;
  abort.binding = room.key.binding;
  abort.attempt = room.attempt;
  abort.cause = *room.cause;
  if (granted) {
    for (const Writer& writer : room.writers) {
      abort.slot = writer.name.slot;
      abort.generation = writer.name.generation;
      send(room, writer.granted_epoch, abort, Urgency::kUrgent);
    }
    // Below: ranks that write nothing here serve other ranks of this engine, for which it ends,
    // too.
    abort.attempt = {};
    abort.slot = {};
    abort.generation = {};
  }
  for (const PeerId peer : room.interests) {
    const bool is_told =
        granted && std::ranges::find(room.writers, peer, &Writer::peer) != room.writers.end();
    if (const Session* session = sessions_.live_session_of(peer); session && !is_told) {
      send(room, session->epoch, abort, Urgency::kUrgent);
    }
  }
}

void DecodeProtocol::drop_interests(DecodeRoom& room) {
  for (const PeerId peer : std::exchange(room.interests, {})) {
    sessions_.drop_interest(peer, now_, *sink_);
  }
}

void DecodeProtocol::leave_open_attempts(DecodeRoom& room) {
  if (!room.is_terminal() || ledger_.holds(room.grant)) {
    return;
  }
  for (const SessionEpoch epoch : room.told) {
    const auto found = slots_.find(epoch);
    if (found != slots_.end() && !has_unsettled(epoch, room)) {
      found->second.open_attempts.erase(room.attempt);
    }
  }
}

bool DecodeProtocol::has_unsettled(SessionEpoch epoch, const DecodeRoom& room) const {
  return sessions_.has_unsettled(epoch, OwnerId(room.receiver.value()));
}

void DecodeProtocol::forget_if_over(ReceiverId receiver) {
  DecodeRoom* room = find(receiver);
  if (room == nullptr || !room->is_terminal() || !room->cleared || room->resolving ||
      ledger_.holds(room->grant)) {
    return;
  }
  for (const SessionEpoch epoch : room->told) {
    if (has_unsettled(epoch, *room)) {
      return;
    }
  }
  attempts_.erase(room->attempt);
  rooms_.erase(receiver);
}

// --- peers ---

void DecodeProtocol::settle(SessionOutput& output) {
  if (const auto* started = std::get_if<SessionStarted>(&output)) {
    session_started(*started);
  } else if (const auto* over = std::get_if<SessionOver>(&output)) {
    session_over(*over);
  } else if (const auto* refused = std::get_if<PeerRefused>(&output)) {
    peer_refused(*refused);
  } else if (const auto* settled = std::get_if<OwnerSettled>(&output)) {
    owner_settled(*settled);
  } else {
    deliver(std::get<MessageDelivered>(output));
  }
}

void DecodeProtocol::session_started(const SessionStarted& started) {
  const Session* session = sessions_.find(started.epoch);
  if (session == nullptr) {
    return;
  }
  slots_.try_emplace(started.epoch,
                     std::min(options_.max_grant_slots, session->peer_self.limits.max_grant_slots),
                     guards_);
  std::vector<ReceiverId> waiting;
  waiting.reserve(open_.size());
  for (const auto& [key, receiver] : open_) {
    waiting.push_back(receiver);
  }
  for (const ReceiverId receiver : waiting) {
    if (DecodeRoom* room = find(receiver)) {
      advance_bootstrap(*room);
    }
  }
}

void DecodeProtocol::session_over(const SessionOver& over) {
  slots_.erase(over.epoch);
  std::erase_if(replica_plans_, [&](const auto& entry) {
    return std::ranges::find(entry.first, over.epoch) != entry.first.end();
  });
  std::vector<ReceiverId> affected;
  rooms_.for_each([&](ReceiverId receiver, const auto& room) {
    const bool writes = std::ranges::any_of(
        room->writers, [&](const Writer& writer) { return writer.epoch == over.epoch; });
    const bool told = std::ranges::find(room->told, over.epoch) != room->told.end();
    if (writes || told) {
      affected.push_back(receiver);
    }
  });
  for (const ReceiverId receiver : affected) {
    DecodeRoom* room = find(receiver);
    if (room->is_terminal()) {
      forget_if_over(receiver);
    } else if (guards_.has(Guard::kEndedSessionFailsRooms)) {
      fail_room(*room, over.cause);
    }
  }
}

void DecodeProtocol::peer_refused(const PeerRefused& refused) {
  std::vector<ReceiverId> waiting;
  waiting.reserve(open_.size());
  for (const auto& [key, receiver] : open_) {
    const DecodeRoom* room = find(receiver);
    if (std::ranges::find(room->interests, refused.peer) != room->interests.end()) {
      waiting.push_back(receiver);
    }
  }
  for (const ReceiverId receiver : waiting) {
    fail_room(*find(receiver), refused.cause);
  }
}

void DecodeProtocol::owner_settled(const OwnerSettled& settled) {
  if (DecodeRoom* room = find(ReceiverId(settled.owner.value()))) {
    leave_open_attempts(*room);
    forget_if_over(room->receiver);
  }
}

void DecodeProtocol::deliver(MessageDelivered& delivered) {
  const SessionEpoch epoch = delivered.epoch;
  if (const auto* done = std::get_if<wire::Done>(&delivered.message)) {
    handle(epoch, *done);
  } else if (const auto* drained = std::get_if<wire::Drained>(&delivered.message)) {
    handle(epoch, *drained);
  } else if (const auto* failed = std::get_if<wire::Failed>(&delivered.message)) {
    handle(epoch, *failed);
  } else if (const auto* progress = std::get_if<wire::Progress>(&delivered.message)) {
    handle(epoch, *progress);
  } else if (const auto* stale = std::get_if<wire::Stale>(&delivered.message)) {
    handle(epoch, *stale);
  } else {
    sink_->count("misdirected_messages");
  }
}

// --- small things ---

void DecodeProtocol::enter(DecodeRoom& room, RoomTrigger trigger) {
  const KvPoll from = room.status;
  sink_->transitioned(Machine::kRoom, static_cast<std::uint8_t>(from),
                      static_cast<std::uint8_t>(trigger));
  if (!room.apply(trigger)) {
    report_missing_row("room", to_string(from), to_string(trigger));
  }
  note_moved(room.receiver.value(), from, room.status);
}

void DecodeProtocol::enter(DecodeRoom& room, GrantTrigger trigger) {
  sink_->transitioned(Machine::kGrant, static_cast<std::uint8_t>(room.grant_state),
                      static_cast<std::uint8_t>(trigger));
  holding_rooms_ -= room.holds_grant() ? 1 : 0;
  if (!room.apply(trigger)) {
    report_missing_row("grant", to_string(room.grant_state), to_string(trigger));
  }
  holding_rooms_ += room.holds_grant() ? 1 : 0;
}

DecodeRoom* DecodeProtocol::find(ReceiverId receiver) const {
  const auto* found = rooms_.find(receiver);
  return found == nullptr ? nullptr : found->get();
}

DecodeRoom* DecodeProtocol::find_by_attempt(AttemptId attempt) {
  const ReceiverId* receiver = attempts_.find(attempt);
  return receiver == nullptr ? nullptr : find(*receiver);
}

AttemptId DecodeProtocol::low_water_mark(SessionEpoch epoch) const {
  // Attempts are numbered when they are granted, so whatever will be granted lies above.
  const auto found = slots_.find(epoch);
  const bool none = found == slots_.end() || found->second.open_attempts.empty();
  const AttemptId mark = none ? next_attempt_ : found->second.open_attempts.least();
  return guards_.has(Guard::kMarkBelowOpenAttempts) ? mark : mark.next();
}

void DecodeProtocol::send(DecodeRoom& room, SessionEpoch epoch, wire::Message message,
                          Urgency urgency) {
  const auto found = slots_.find(epoch);
  if (found == slots_.end()) {
    return;
  }
  if (room.attempt != AttemptId{}) {
    found->second.open_attempts.insert(room.attempt);
  }
  if (std::ranges::find(room.told, epoch) == room.told.end()) {
    room.told.push_back(epoch);
  }
  const AttemptId mark = low_water_mark(epoch);
  std::visit(
      [&](auto& body) {
        if constexpr (requires { body.low_water_mark; }) {
          body.low_water_mark = mark;
        }
      },
      message);
  sessions_.send(epoch, std::move(message), urgency, OwnerId(room.receiver.value()), now_, *sink_);
}

Snapshot DecodeProtocol::snapshot(Instant now, std::size_t max_rooms_shown) const {
  Snapshot view;
  view.peers = sessions_.view(now);
  view.room_count = open_.size();
  view.oldest_room_ms = oldest_room_ms(now);
  view.oldest_quarantine_ms = ledger_.oldest_quarantine_ms(now);
  view.grants = ledger_.grants();
  view.quarantined_pages = ledger_.quarantined_pages();
  view.granted_pages_total = ledger_.granted_total();
  view.returned_pages_total = ledger_.returned_total();
  if (view.quarantined_pages >= options_.quarantine_max_pages) {
    view.readiness_problems.push_back(fmt::format("quarantine holds {} pages (cap {})",
                                                  view.quarantined_pages,
                                                  options_.quarantine_max_pages));
  }
  if (!overdue_.empty()) {
    view.readiness_problems.push_back(fmt::format("{} fences are overdue", overdue_.size()));
  }
  rooms_.for_some(max_rooms_shown, [&](ReceiverId receiver, const auto& room) {
    view.rooms.push_back(
        RoomView{receiver.value(), room->key.room, room->key.binding, room->attempt,
                 std::string(to_string(room->status)), std::string(to_string(room->grant_state)),
                 std::chrono::duration_cast<milliseconds>(now - room->opened).count(),
                 room->metadata ? room->metadata->pages.size() : 0});
  });
  return view;
}

}  // namespace kvferry::core
