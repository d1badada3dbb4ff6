// Grants, landings, Done, fences and the return of pages.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/decode_protocol.h"
#include "layout/kv_layout.h"
#include "wire/codec.h"

namespace kvferry::core {

Status DecodeProtocol::check_metadata(const DecodeRoom& room) const {
  const MetadataGiven& given = *room.metadata;
  const auto& regions = config_.self.layout.regions;
  const bool has_pool = std::ranges::any_of(
      regions, [](const RegionShape& region) { return holds_pages(region.kind); });
  if (!has_pool && !given.pages.empty()) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("{} pages are given, and no region of this rank holds pages",
                            given.pages.size()));
  }
  const auto outside =
      layout::find_outside(regions, given.pages, given.aux_slot, given.state_slots);
  return outside ? fail(FailureCode::kInvalidArgument, *outside) : Status{};
}

// Gives each writer its plan, its extent and a slot in its session.
Status DecodeProtocol::plan_writers(DecodeRoom& room) {
  const MetadataGiven& given = *room.metadata;
  for (Writer& writer : room.writers) {
    const Session* session = sessions_.find(writer.epoch);
    const auto slots = slots_.find(writer.epoch);
    if (session == nullptr || slots == slots_.end()) {
      return fail(FailureCode::kPeerLost, "the session ended before the grant");
    }
    const bool aux = writer.part.sends_aux;
    const bool state = writer.part.sends_state;
    writer.extent.emplace(writer.plan->page_slices(), given.pages,
                          aux ? writer.plan->aux_slices() : std::vector<layout::ItemSlice>{},
                          aux ? given.aux_slot : -1,
                          state ? writer.plan->state_slices() : std::vector<layout::ItemSlice>{},
                          state ? given.state_slots : std::vector<std::uint32_t>{});
    writer.coverage.emplace(*writer.extent);
    const auto name = slots->second.slots.take();
    if (!name) {
      return fail(FailureCode::kTableFull,
                  fmt::format("{} grants are open in one session (max_grant_slots)",
                              slots->second.slots.in_use()));
    }
    note_named(slots->second, *name);
    writer.name = *name;
    writer.granted_epoch = writer.epoch;
    auto& owners = slots->second.owners;
    owners.resize(std::max<std::size_t>(owners.size(), name->slot.value() + std::size_t{1}));
    owners[name->slot.value()] = room.receiver;
    const std::uint32_t limit =
        std::min(options_.control_message_max_bytes, session->peer_self.limits.max_message_bytes);
    if (const std::size_t bytes = wire::encoded_size_bound(grant_message(room, writer));
        bytes > limit) {
      return fail(FailureCode::kGrantTooLarge,
                  fmt::format("a grant of {} pages takes {} bytes of {} "
                              "(control_message_max_bytes)",
                              given.pages.size(), bytes, limit));
    }
  }
  return {};
}

wire::Grant DecodeProtocol::grant_message(const DecodeRoom& room, const Writer& writer) const {
  const MetadataGiven& given = *room.metadata;
  wire::Grant message;
  message.room = room.key.room;
  message.binding = room.key.binding;
  message.attempt = room.attempt;
  message.decode_engine_epoch = config_.self.engine_epoch;
  message.slot = writer.name.slot;
  message.generation = writer.name.generation;
  message.expected_grants = given.expected_grants;
  message.decode_prefix_pages = given.decode_prefix_pages;
  message.pages = given.pages;
  message.aux_slot = writer.part.sends_aux ? given.aux_slot : -1;
  if (writer.part.sends_state) {
    message.state_slots = given.state_slots;
  }
  return message;
}

void DecodeProtocol::grant(DecodeRoom& room) {
  Status ready = check_metadata(room);
  if (ready) {
    ready = plan_writers(room);
  }
  const GrantId id = next_grant_;
  if (ready) {
    ready = ledger_.grant(id, GrantedPages{room.metadata->pages, room.metadata->aux_slot,
                                           room.metadata->state_slots});
  }
  if (!ready) {
    free_slots(room);
    fail_room(room, ready.error());
    return;
  }
  next_grant_ = next_grant_.next();
  room.grant = id;
  grants_.emplace(id, room.receiver);
  // Numbered here and not when the room opens: the low-water mark has to stay below every attempt
  // that may still be granted, and a room may wait long for its pages.
  room.attempt = next_attempt_;
  next_attempt_ = next_attempt_.next();
  attempts_.emplace(room.attempt, room.receiver);
  sink_->publish_attempt(room.receiver, room.attempt);
  OpenGrant open{id, {}};
  for (const Writer& writer : room.writers) {
    open.slots.push_back(GrantedSlot{writer.granted_epoch, writer.name.slot, writer.name.generation,
                                     *writer.extent});
  }
  // Open before the grant leaves: the first write may come at once.
  sink_->open_grant(std::move(open));
  enter(room, GrantTrigger::kGrant);
  enter(room, RoomTrigger::kStarted);
  for (const Writer& writer : room.writers) {
    send(room, writer.granted_epoch, grant_message(room, writer), Urgency::kNormal);
  }
  sink_->publish_status(room.receiver.value(), room.status);
  set_deadline(room, options_.transfer_timeout_ms);
  advance_transfer(room);
}

std::pair<DecodeRoom*, Writer*> DecodeProtocol::find_by_slot(SessionEpoch epoch, GrantSlot slot,
                                                             std::optional<Generation> generation) {
  const auto slots = slots_.find(epoch);
  if (slots == slots_.end()) {
    return {nullptr, nullptr};
  }
  const auto& owners = slots->second.owners;
  DecodeRoom* room = slot.value() < owners.size() ? find(owners[slot.value()]) : nullptr;
  if (room == nullptr) {
    return {nullptr, nullptr};
  }
  return {room, room->find_writer(epoch, slot, generation)};
}

// Rule 9: a landing counts for the generation that it names, not for the slot's present owner.
std::pair<DecodeRoom*, Writer*> DecodeProtocol::find_landed(const layout::Landing& landing) {
  std::optional<Generation> generation = landing.generation;
  if (!guards_.has(Guard::kLandingGeneration)) {
    generation.reset();
  }
  return find_by_slot(landing.session, landing.slot, generation);
}

std::pair<DecodeRoom*, Writer*> DecodeProtocol::find_speaker(SessionEpoch epoch, AttemptId attempt,
                                                             GrantSlot slot,
                                                             Generation generation) {
  if (!guards_.has(Guard::kWriterGeneration)) {
    return find_by_slot(epoch, slot, std::nullopt);
  }
  DecodeRoom* room = find_by_attempt(attempt);
  return {room, room == nullptr ? nullptr : room->find_writer(epoch, slot, generation)};
}

// Most landings come in runs under one grant, which is looked up and moved on once.
void DecodeProtocol::on(WritesLanded& event) {
  for (std::span<const layout::Landing> left = event.landings; !left.empty();) {
    const auto end = std::ranges::find_if_not(left, [&](const layout::Landing& landing) {
      return landing.session == left.front().session && landing.slot == left.front().slot &&
             landing.generation == left.front().generation;
    });
    const auto count = static_cast<std::size_t>(end - left.begin());
    if (const auto [room, writer] = find_landed(left.front()); writer != nullptr) {
      landed(*room, *writer, left.first(count));
    } else {
      sink_->count("late_landings", count);
    }
    left = left.subspan(count);
  }
}

void DecodeProtocol::landed(DecodeRoom& room, Writer& writer,
                            std::span<const layout::Landing> landings) {
  for (const layout::Landing& landing : landings) {
    if (room.is_terminal()) {
      sink_->count("late_landings");
      continue;
    }
    if (!guards_.has(Guard::kCoverageSet)) {
      writer.counted_bytes += landing.length;
      continue;
    }
    const auto added =
        writer.coverage->add(landing.region, landing.item, landing.offset_in_item, landing.length);
    if (added == layout::CoverageSet::Add::kOutside) {
      fail_room(room, Failure{FailureCode::kOutsideGrant,
                              FailureWhere::kPeer,
                              fmt::format("a write landed outside the grant: region {} item {} "
                                          "offset {} length {}",
                                          landing.region.value(), landing.item,
                                          landing.offset_in_item, landing.length),
                              {},
                              -1});
    } else if (added == layout::CoverageSet::Add::kOverlap) {
      sink_->count("overlapping_landings");
    }
  }
  advance_transfer(room);
}

void DecodeProtocol::on(WriteTorn& event) {
  const layout::Landing& torn = event.landing;
  if (const auto [room, writer] = find_landed(torn); writer != nullptr) {
    fail_room(*room, Failure{FailureCode::kWriteTorn,
                             FailureWhere::kPath,
                             fmt::format("a write of {} bytes to item {} of region {} {}",
                                         torn.length, torn.item, torn.region.value(), event.how),
                             {},
                             -1});
  }
}

void DecodeProtocol::advance_transfer(DecodeRoom& room) {
  if (room.status != KvPoll::kTransferring) {
    return;
  }
  const bool awaits_fence =
      config_.transport_class.local_fence && guards_.has(Guard::kFenceBeforeSuccess);
  if (room.grant_state == GrantState::kGranted && is_covered(room)) {
    enter(room, GrantTrigger::kCoverageFull);
    start_fence(room);
  }
  if (room.grant_state == GrantState::kCovered && !awaits_fence && is_committed(room)) {
    enter(room, GrantTrigger::kAllQuiet);
  }
  if (room.grant_state == GrantState::kFenced || room.grant_state == GrantState::kQuiet) {
    try_succeed(room);
  }
}

// Rule 10: every range of every writer's slice has landed.
bool DecodeProtocol::is_covered(const DecodeRoom& room) const {
  if (!guards_.has(Guard::kCoverageNeeded)) {
    return is_committed(room);
  }
  if (!guards_.has(Guard::kCoverageSet)) {
    return std::ranges::all_of(room.writers, [](const Writer& writer) {
      return writer.coverage->is_full() || writer.counted_bytes >= writer.extent->total_bytes();
    });
  }
  return room.is_covered();
}

// Rule 10: every writer has said that its source was held until all of it had landed.
bool DecodeProtocol::is_committed(const DecodeRoom& room) const {
  if (!guards_.has(Guard::kDoneNeeded)) {
    return true;
  }
  if (!guards_.has(Guard::kEveryWriterDone)) {
    return std::ranges::any_of(room.writers, &Writer::done);
  }
  return room.all_done();
}

// Rule 3: every release passes through it, Success included, and it waits for nobody.
void DecodeProtocol::start_fence(DecodeRoom& room) {
  const bool local_fence = config_.transport_class.local_fence;
  // Without a fence there is no deadline either: quiet writers alone free the pages.
  const bool has_deadline = local_fence || !guards_.has(Guard::kNoReleaseByTimeout);
  if (!has_deadline || room.fence_started) {
    return;
  }
  room.fence_started = true;
  timers_.set({TimerKind::kFence, room.receiver}, now_ + milliseconds(options_.fence_timeout_ms));
  if (local_fence) {
    sink_->fence_grant(room.grant);
  }
}

void DecodeProtocol::fence_overdue(DecodeRoom& room) {
  if (!guards_.has(Guard::kNoReleaseByTimeout)) {
    end_fence(room);  // the pages leave, whatever may still be under way
    return;
  }
  if (overdue_.insert(room.receiver).second) {
    sink_->count("fences_overdue");
    sink_->note(fmt::format("room {} attempt {}: the fence of {} pages is not done after {} ms",
                            room.key.room.value(), room.attempt.value(),
                            room.metadata->pages.size(), options_.fence_timeout_ms));
  }
}

void DecodeProtocol::on(FenceCompleted& event) {
  const ReceiverId* receiver = grants_.find(event.grant);
  DecodeRoom* room = receiver == nullptr ? nullptr : find(*receiver);
  const bool awaited =
      room != nullptr && room->fence_started &&
      (room->grant_state == GrantState::kCovered || room->grant_state == GrantState::kRevoking);
  if (!awaited) {
    sink_->count("stale_fences");
    return;
  }
  end_fence(*room);
}

void DecodeProtocol::end_fence(DecodeRoom& room) {
  timers_.cancel({TimerKind::kFence, room.receiver});
  overdue_.erase(room.receiver);
  const bool revoked = room.grant_state == GrantState::kRevoking;
  enter(room, GrantTrigger::kFenceDone);
  if (!revoked) {
    advance_transfer(room);
    return;
  }
  for (const Writer& writer : room.writers) {
    if (!guards_.has(Guard::kAbortUntilAcknowledged)) {
      sessions_.withdraw<wire::Abort>(writer.granted_epoch, OwnerId(room.receiver.value()));
    }
    send(room, writer.granted_epoch,
         wire::Fenced{room.attempt, writer.name.slot, writer.name.generation}, Urgency::kUrgent);
  }
  release(room);
}

// The transport's proof stands for the word of writers that can't speak any more. It counts only
// for a session that is over here: in a living one new grants are given all the time.
void DecodeProtocol::on(SessionTornDown& event) {
  if (sessions_.find(event.session) != nullptr) {
    sink_->count("stale_teardowns");
    return;
  }
  std::vector<ReceiverId> affected;
  rooms_.for_each([&](ReceiverId receiver, const auto& room) {
    const bool wrote =
        ledger_.holds(room->grant) && std::ranges::any_of(room->writers, [&](const Writer& writer) {
          return writer.granted_epoch == event.session;
        });
    if (wrote) {
      affected.push_back(receiver);
    }
  });
  sink_->count("sessions_torn_down");
  for (const ReceiverId receiver : affected) {
    DecodeRoom& room = *find(receiver);
    for (Writer& writer : room.writers) {
      if (writer.granted_epoch == event.session || !guards_.has(Guard::kTeardownOfItsSession)) {
        writer.torn_down = true;
      }
    }
    release_if_quiet(room);
  }
}

// Rule 3, for transports without a local fence: the pages leave when the last writer is quiet.
void DecodeProtocol::release_if_quiet(DecodeRoom& room) {
  const bool waits_for_fence =
      config_.transport_class.local_fence && guards_.has(Guard::kFenceBeforeRelease);
  if (room.grant_state != GrantState::kRevoking || waits_for_fence) {
    return;
  }
  const bool quiet = guards_.has(Guard::kEveryWriterDrained)
                         ? room.all_quiet()
                         : std::ranges::any_of(room.writers, &Writer::is_quiet);
  if (quiet) {
    enter(room, room.any_torn_down() ? GrantTrigger::kTornDown : GrantTrigger::kAllQuiet);
    release(room);
  }
}

void DecodeProtocol::try_succeed(DecodeRoom& room) {
  if (!is_committed(room)) {
    return;
  }
  if (room.metadata->aux_slot >= 0 && guards_.has(Guard::kAuxChecked)) {
    const Status aux = sink_->inspect_aux(static_cast<std::uint32_t>(room.metadata->aux_slot),
                                          room.key.room, room.key.binding);
    if (!aux) {
      fail_room(room, aux.error());
      return;
    }
  }
  if (!sink_->publish_terminal(room.receiver.value(), KvPoll::kSuccess, std::nullopt) &&
      guards_.has(Guard::kCellDecides)) {
    // The caller's abort came first; its event is on the way.
    fail_room(
        room,
        Failure{FailureCode::kAborted, FailureWhere::kLocal, "aborted by the caller", {}, -1});
    return;
  }
  enter(room, RoomTrigger::kCompleted);
  enter(room, GrantTrigger::kSucceed);
  open_.erase(match(room.key));
  cancel_deadline(room);
  timers_.cancel({TimerKind::kFence, room.receiver});
  room.owned = ledger_.release(room.grant);
  grants_.erase(room.grant);
  for (const Writer& writer : room.writers) {
    send(room, writer.granted_epoch,
         wire::Consumed{room.key.room, room.key.binding, room.attempt, {}}, Urgency::kNormal);
  }
  free_slots(room);
  drop_interests(room);
  leave_open_attempts(room);
  forget_if_over(room.receiver);
}

// The attempt failed and no byte can land any more.
void DecodeProtocol::release(DecodeRoom& room) {
  enter(room, GrantTrigger::kRelease);
  timers_.cancel({TimerKind::kFence, room.receiver});
  GrantedPages pages;
  if (ledger_.holds(room.grant)) {
    pages = ledger_.release(room.grant);
    grants_.erase(room.grant);
  } else {
    // Never granted. What is in somebody else's grant (the caller's mistake) must not look free.
    pages = ledger_.not_granted(
        GrantedPages{room.metadata->pages, room.metadata->aux_slot, room.metadata->state_slots});
  }
  if (guards_.has(Guard::kPagesLeaveLate)) {
    free_slots(
        room);  // without it nothing was fenced: they are open still and can't be given again
  }
  sink_->release_pages(ReleasePages{room.receiver.value(), room.key.room, room.key.binding,
                                    std::move(pages.pages), pages.aux_slot,
                                    std::move(pages.state_slots)});
  leave_open_attempts(room);
  forget_if_over(room.receiver);
}

void DecodeProtocol::free_slots(DecodeRoom& room) {
  for (Writer& writer : room.writers) {
    const auto slots = slots_.find(writer.granted_epoch);
    if (slots == slots_.end() || writer.name.generation == Generation{}) {
      continue;
    }
    ReceiverId& owner = slots->second.owners[writer.name.slot.value()];
    if (owner == room.receiver) {
      owner = {};
      slots->second.slots.give_back(writer.name.slot);
    }
  }
}

// --- what writers say ---

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Done& done) {
  const auto [room, writer] = find_speaker(epoch, done.attempt, done.slot, done.generation);
  const bool names_room =
      writer != nullptr &&
      (is_same_room(room->key, {done.room, done.binding}) || !guards_.has(Guard::kDoneNamesRoom));
  if (!names_room) {
    sink_->count("stale_messages");
    return;
  }
  if (room->status == KvPoll::kSuccess) {
    send(*room, epoch, wire::Consumed{done.room, done.binding, done.attempt, {}}, Urgency::kNormal);
    return;
  }
  if (room->is_terminal() || (writer->done && guards_.has(Guard::kDoneOnce))) {
    return;  // Its Abort is on the way, or it is the same word twice.
  }
  const Session* session = sessions_.find(epoch);
  const bool same_launch =
      session != nullptr && (done.prefill_engine_epoch == session->peer_self.engine_epoch ||
                             !guards_.has(Guard::kPrefillEngineEpoch));
  if (!same_launch) {
    fail_room(*room, Failure{FailureCode::kEngineEpochMismatch,
                             FailureWhere::kPeer,
                             "Done names another launch of the prefill engine",
                             {},
                             -1});
    return;
  }
  if (const auto mismatch = room->mismatch(done, *writer);
      mismatch && guards_.has(Guard::kDoneCounts)) {
    fail_room(*room, Failure{FailureCode::kDoneMismatch, FailureWhere::kPeer, *mismatch,
                             session->peer_self.control_endpoint, -1});
    return;
  }
  // Where words are counted, a second one of the same writer stands for another's.
  (guards_.has(Guard::kDoneOnce) ? *writer : room->undone_or(*writer)).done = true;
  if (!config_.transport_class.target_executes_copy) {
    // Aux and state have no Progress of their own; Done vouches for every ticket.
    writer->coverage->cover_all();
  }
  advance_transfer(*room);
}

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Progress& progress) {
  const auto [room, writer] =
      find_speaker(epoch, progress.attempt, progress.slot, progress.generation);
  if (writer == nullptr || room->is_terminal() || config_.transport_class.target_executes_copy) {
    sink_->count("stale_messages");
    return;
  }
  const auto& pages = room->metadata->pages;
  const std::uint64_t end = std::uint64_t{progress.first_page} + progress.page_count;
  for (std::uint64_t i = progress.first_page; i < std::min<std::uint64_t>(end, pages.size()); ++i) {
    for (const layout::ItemSlice& slice : writer->plan->page_slices()) {
      for (std::uint32_t piece = 0; piece < slice.piece_count; ++piece) {
        writer->coverage->add(slice.target_region, pages[i].value(),
                              slice.offset + piece * slice.stride, slice.piece_bytes);
      }
    }
  }
  advance_transfer(*room);
}

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Drained& drained) {
  const auto [room, writer] =
      find_speaker(epoch, drained.attempt, drained.slot, drained.generation);
  if (writer == nullptr) {
    sink_->count("stale_messages");
    return;
  }
  writer->drained = writer->drained || drained.clean;
  release_if_quiet(*room);
}

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Failed& failed) {
  DecodeRoom* room = nullptr;
  if (failed.attempt != AttemptId{}) {
    room = find_by_attempt(failed.attempt);
  } else if (const auto found = open_.find(match({failed.room, failed.binding}));
             found != open_.end()) {
    room = find(found->second);
  }
  const Peer* sender = sessions_.peer_of(epoch);
  const bool concerned = room != nullptr && sender != nullptr &&
                         is_same_room(room->key, {failed.room, failed.binding}) &&
                         std::ranges::find(room->interests, sender->id) != room->interests.end();
  if (!concerned) {
    sink_->count("stale_messages");
    return;
  }
  Failure cause = failed.cause;
  cause.where = FailureWhere::kPeer;
  cause.peer = sender->address.endpoint;
  fail_room(*room, std::move(cause));
}

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Stale& stale) {
  sink_->count("stale_answers");
  DecodeRoom* room = find_by_attempt(stale.attempt);
  const bool concerned =
      room != nullptr && std::ranges::any_of(room->writers, [&](const Writer& writer) {
        return writer.granted_epoch == epoch;
      });
  if (concerned && !room->is_terminal()) {
    fail_room(*room, Failure{FailureCode::kRoomUnknown,
                             FailureWhere::kPeer,
                             "a writer holds the attempt for one that is over",
                             {},
                             -1});
  }
}

}  // namespace kvferry::core
