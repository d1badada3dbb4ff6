// Grants, landings, Done, fences and the return of pages.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/decode_protocol.h"
#include "wire/codec.h"

namespace kvferry::core {

Status DecodeProtocol::check_metadata(const DecodeRoom& room) const {
  const MetadataGiven& given = *room.metadata;
  const auto largest_page = std::ranges::max_element(given.pages);
  for (const RegionShape& region : config_.self.layout.regions) {
    if (region.kind == RegionKind::kAux) {
      if (given.aux_slot >= static_cast<std::int64_t>(region.item_count)) {
        return fail(FailureCode::kInvalidArgument,
                    fmt::format("aux slot {} of {}", given.aux_slot, region.item_count));
      }
    } else if (region.kind == RegionKind::kState) {
      for (const std::uint32_t slot : given.state_slots) {
        if (slot >= region.item_count) {
          return fail(FailureCode::kInvalidArgument,
                      fmt::format("state slot {} of {}", slot, region.item_count));
        }
      }
    } else if (largest_page != given.pages.end() && largest_page->value() >= region.item_count) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("page {} of {}", largest_page->value(), region.item_count));
    }
  }
  return {};
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
    auto plan =
        layout::CopyPlan::make(session->peer_self.layout, config_.self.layout, writer.part.part);
    if (!plan) {
      return tl::unexpected(plan.error());
    }
    writer.plan = std::move(*plan);
    const bool aux = writer.part.sends_aux;
    const bool state = writer.part.sends_state;
    writer.extent = std::make_unique<layout::GrantExtent>(
        writer.plan->page_slices(), given.pages,
        aux ? writer.plan->aux_slices() : std::vector<layout::ItemSlice>{},
        aux ? given.aux_slot : -1,
        state ? writer.plan->state_slices() : std::vector<layout::ItemSlice>{},
        state ? given.state_slots : std::vector<std::uint32_t>{});
    writer.coverage = std::make_unique<layout::CoverageSet>(*writer.extent);
    const auto name = slots->second.slots.take();
    if (!name) {
      return fail(FailureCode::kTableFull,
                  fmt::format("{} grants are open in one session (max_grant_slots)",
                              slots->second.slots.in_use()));
    }
    writer.name = *name;
    writer.granted_epoch = writer.epoch;
    slots->second.owners[name->slot] = room.receiver;
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
  ungranted_.erase(room.attempt);
  sink_->publish_status(room.receiver.value(), room.status);
  set_deadline(room, options_.transfer_timeout_ms);
  advance_transfer(room);
}

// Rule 9: a landing counts for the generation that it names, not for the slot's present owner.
std::pair<DecodeRoom*, Writer*> DecodeProtocol::find_by_slot(const layout::Landing& landing) {
  const auto slots = slots_.find(landing.session);
  if (slots == slots_.end()) {
    return {nullptr, nullptr};
  }
  const auto owner = slots->second.owners.find(landing.slot);
  DecodeRoom* room = owner == slots->second.owners.end() ? nullptr : find(owner->second);
  if (room == nullptr) {
    return {nullptr, nullptr};
  }
  return {room, room->find_writer(landing.session, landing.slot, landing.generation)};
}

void DecodeProtocol::on(WritesLanded& event) {
  for (const layout::Landing& landing : event.landings) {
    const auto [room, writer] = find_by_slot(landing);
    if (writer == nullptr || room->is_terminal()) {
      sink_->count("late_landings");
      continue;
    }
    const auto added =
        writer->coverage->add(landing.region, landing.item, landing.offset_in_item, landing.length);
    if (added == layout::CoverageSet::Add::kOutside) {
      fail_room(*room, Failure{FailureCode::kOutsideGrant,
                               FailureWhere::kPeer,
                               fmt::format("a write landed outside the grant: region {} item {} "
                                           "offset {} length {}",
                                           landing.region.value(), landing.item,
                                           landing.offset_in_item, landing.length),
                               {},
                               -1});
    } else if (added == layout::CoverageSet::Add::kOverlap) {
      sink_->count("overlapping_landings");
    } else {
      advance_transfer(*room);
    }
  }
}

void DecodeProtocol::on(WriteTorn& event) {
  const layout::Landing& torn = event.landing;
  if (const auto [room, writer] = find_by_slot(torn); writer != nullptr) {
    fail_room(*room, Failure{FailureCode::kWriteTorn,
                             FailureWhere::kPath,
                             fmt::format("a write of {} bytes to item {} of region {} stopped in "
                                         "the middle",
                                         torn.length, torn.item, torn.region.value()),
                             {},
                             -1});
  }
}

void DecodeProtocol::advance_transfer(DecodeRoom& room) {
  if (room.status != KvPoll::kTransferring) {
    return;
  }
  const bool local_fence = config_.transport_class.local_fence;
  if (room.grant_state == GrantState::kGranted && room.is_covered()) {
    enter(room, GrantTrigger::kCoverageFull);
    start_fence(room);
  }
  if (room.grant_state == GrantState::kCovered && !local_fence && room.all_done()) {
    enter(room, GrantTrigger::kAllQuiet);
  }
  if (room.grant_state == GrantState::kFenced || room.grant_state == GrantState::kQuiet) {
    try_succeed(room);
  }
}

// Rule 3: every release passes through it, Success included, and it waits for nobody.
void DecodeProtocol::start_fence(DecodeRoom& room) {
  if (!config_.transport_class.local_fence || room.fence_started) {
    return;
  }
  room.fence_started = true;
  timers_.set({TimerKind::kFence, room.receiver}, now_ + milliseconds(options_.fence_timeout_ms));
  sink_->fence_grant(room.grant);
}

void DecodeProtocol::on(FenceCompleted& event) {
  const auto found = grants_.find(event.grant);
  DecodeRoom* room = found == grants_.end() ? nullptr : find(found->second);
  if (room == nullptr || !room->fence_started) {
    sink_->count("stale_fences");
    return;
  }
  timers_.cancel({TimerKind::kFence, room->receiver});
  overdue_.erase(room->receiver);
  const bool revoked = room->grant_state == GrantState::kRevoking;
  enter(*room, GrantTrigger::kFenceDone);
  if (!revoked) {
    advance_transfer(*room);
    return;
  }
  for (const Writer& writer : room->writers) {
    send(*room, writer.granted_epoch,
         wire::Fenced{room->attempt, writer.name.slot, writer.name.generation}, Urgency::kUrgent);
  }
  release(*room);
}

void DecodeProtocol::try_succeed(DecodeRoom& room) {
  if (!room.all_done()) {
    return;
  }
  if (room.metadata->aux_slot >= 0) {
    const Status aux = sink_->inspect_aux(static_cast<std::uint32_t>(room.metadata->aux_slot),
                                          room.key.room, room.key.binding);
    if (!aux) {
      fail_room(room, aux.error());
      return;
    }
  }
  if (!sink_->publish_terminal(room.receiver.value(), KvPoll::kSuccess, std::nullopt)) {
    // The caller's abort came first; its event is on the way.
    fail_room(
        room,
        Failure{FailureCode::kAborted, FailureWhere::kLocal, "aborted by the caller", {}, -1});
    return;
  }
  enter(room, RoomTrigger::kCompleted);
  enter(room, GrantTrigger::kSucceed);
  open_.erase(room.key);
  timers_.cancel({TimerKind::kRoom, room.receiver});
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
  GrantedPages pages;
  if (ledger_.holds(room.grant)) {
    pages = ledger_.release(room.grant);
    grants_.erase(room.grant);
  } else {
    // Never granted. What is in somebody else's grant (the caller's mistake) must not look free.
    pages = ledger_.not_granted(
        GrantedPages{room.metadata->pages, room.metadata->aux_slot, room.metadata->state_slots});
  }
  free_slots(room);
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
    const auto owner = slots->second.owners.find(writer.name.slot);
    if (owner != slots->second.owners.end() && owner->second == room.receiver) {
      slots->second.owners.erase(owner);
      slots->second.slots.give_back(writer.name.slot);
    }
  }
}

// --- what writers say ---

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Done& done) {
  DecodeRoom* room = find_by_attempt(done.attempt);
  Writer* writer = room == nullptr ? nullptr : room->find_writer(epoch, done.slot, done.generation);
  if (writer == nullptr || room->key != RoomKey{done.room, done.binding}) {
    sink_->count("stale_messages");
    return;
  }
  if (room->status == KvPoll::kSuccess) {
    send(*room, epoch, wire::Consumed{done.room, done.binding, done.attempt, {}}, Urgency::kNormal);
    return;
  }
  if (room->is_terminal() || writer->done) {
    return;  // Its Abort is on the way, or it is the same word twice.
  }
  const Session* session = sessions_.find(epoch);
  if (session == nullptr || done.prefill_engine_epoch != session->peer_self.engine_epoch) {
    fail_room(*room, Failure{FailureCode::kEngineEpochMismatch,
                             FailureWhere::kPeer,
                             "Done names another launch of the prefill engine",
                             {},
                             -1});
    return;
  }
  if (const auto mismatch = room->mismatch(done, *writer)) {
    fail_room(*room, Failure{FailureCode::kDoneMismatch, FailureWhere::kPeer, *mismatch,
                             session->peer_self.control_endpoint, -1});
    return;
  }
  writer->done = true;
  if (!config_.transport_class.target_executes_copy) {
    // Aux and state have no Progress of their own; Done vouches for every ticket.
    writer->coverage->cover_all();
  }
  advance_transfer(*room);
}

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Progress& progress) {
  DecodeRoom* room = find_by_attempt(progress.attempt);
  Writer* writer =
      room == nullptr ? nullptr : room->find_writer(epoch, progress.slot, progress.generation);
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
  DecodeRoom* room = find_by_attempt(drained.attempt);
  Writer* writer =
      room == nullptr ? nullptr : room->find_writer(epoch, drained.slot, drained.generation);
  if (writer == nullptr) {
    sink_->count("stale_messages");
    return;
  }
  writer->drained = writer->drained || drained.clean;
  if (room->grant_state == GrantState::kRevoking && !config_.transport_class.local_fence &&
      room->all_drained()) {
    enter(*room, GrantTrigger::kAllQuiet);
    release(*room);
  }
}

void DecodeProtocol::handle(SessionEpoch epoch, const wire::Failed& failed) {
  DecodeRoom* room = nullptr;
  if (failed.attempt != AttemptId{}) {
    room = find_by_attempt(failed.attempt);
  } else if (const auto found = open_.find(RoomKey{failed.room, failed.binding});
             found != open_.end()) {
    room = find(found->second);
  }
  const Peer* sender = sessions_.peer_of(epoch);
  const bool concerned = room != nullptr && sender != nullptr &&
                         room->key == RoomKey{failed.room, failed.binding} &&
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
