#include "sim/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/world.h"

namespace kvferry::sim {

void Oracle::violate(std::string_view invariant, std::string what) {
  if (violation_ || invariant == overlooked_) {
    return;
  }
  violation_ =
      Violation{std::string(invariant), std::move(what), world_.trace.event(), world_.agenda.now()};
  world_.trace.line(LogLevel::kBrief, world_.agenda.now(), "VIOLATION {}: {}",
                    violation_->invariant, violation_->what);
}

void Oracle::healed() { healed_at_ = world_.agenda.now(); }

// --- processes ---

void Oracle::process_started(Node& node) {
  Place& place = node.place();
  if (place.role != Role::kDecode) {
    return;
  }
  Holdings& holdings = holdings_[place.index];
  holdings.by_region.clear();
  for (const RegionShape& region : place.memory->shape().regions) {
    auto& owners = holds_pages(region.kind)          ? holdings.pages
                   : region.kind == RegionKind::kAux ? holdings.aux
                                                     : holdings.state;
    owners.assign(region.item_count, Owner{});
    holdings.by_region.push_back(&owners);
  }
}

void Oracle::process_died(Node& node) {
  for (auto* owners : {&holdings_[node.place().index].pages, &holdings_[node.place().index].aux,
                       &holdings_[node.place().index].state}) {
    std::ranges::fill(*owners, Owner{});
  }
}

// --- who owns what at decode ---

void Oracle::pages_given(Node& decode, std::uint64_t receiver,
                         const core::MetadataGiven& metadata) {
  receivers_[{&decode, receiver}].metadata = metadata;
  for_each_owner(decode.place(), metadata, [&](Owner& owner) {
    // What is in a grant stays there, whatever a caller says.
    if (owner.use != Use::kGranted && owner.use != Use::kGiven) {
      owner = Owner{Use::kGiven, receiver, {}};
    }
  });
}

// The core numbers an attempt and then opens its grant, for the same room.
void Oracle::attempt_named(Node& decode, std::uint64_t receiver, AttemptId attempt) {
  if (!attempts_.insert({&decode, attempt}).second) {
    violate("S12", fmt::format("{}: attempt {} is used twice", decode.name(), attempt.value()));
  }
  granting_ = receiver;
  granting_attempt_ = attempt;
}

void Oracle::grant_opened(Node& decode, const core::OpenGrant& open) {
  ReceiverFacts& room = receivers_.at({&decode, granting_});
  room.grant = open.grant;
  GrantFacts& facts = grants_[{&decode, open.grant}];
  facts.decode = &decode;
  facts.receiver = granting_;
  facts.attempt = granting_attempt_;
  facts.grant = open.grant;
  facts.slots = open.slots;
  for (const core::GrantedSlot& slot : open.slots) {
    const WriteName name{slot.session, slot.slot, slot.generation};
    if (!by_name_.emplace(name, GrantKey{&decode, open.grant}).second) {
      violate("S12", fmt::format("{}: slot {} generation {} is given twice in a session",
                                 decode.name(), slot.slot.value(), slot.generation.value()));
    }
  }
  for_each_owner(decode.place(), room.metadata, [&](Owner& owner) {
    if (owner.use != Use::kGiven || owner.receiver != granting_) {
      violate("S1",
              fmt::format("{}: what is granted belongs to somebody else (rule 4)", decode.name()));
    }
    owner = Owner{Use::kGranted, granting_, open.grant};
  });
}

void Oracle::fence_ordered(Node& decode, GrantId grant) {
  const auto found = grants_.find({&decode, grant});
  if (found == grants_.end() || is_terminal(decode.cell(found->second.receiver).status)) {
    return;
  }
  const GrantFacts& facts = found->second;
  const Node* prefill = nullptr;
  for (const core::GrantedSlot& slot : facts.slots) {
    prefill = sessions_[slot.session].prefill;
    const WriterFacts& writer = writer_of({slot.session, slot.slot, slot.generation});
    if (prefill == nullptr || senders_[{writer.prefill, writer.sender}].end_seen) {
      return;  // Its source may have been given up; then there is no Done (rule 10).
    }
  }
  if (prefill != nullptr) {
    check_content(decode, receivers_.at({&decode, facts.receiver}).metadata,
                  {decode.cell(facts.receiver).key.binding, prefill->engine_epoch()},
                  "full coverage");
  }
}

void Oracle::fence_done(Node& decode, GrantId grant) {
  const auto found = grants_.find({&decode, grant});
  if (found != grants_.end()) {
    found->second.fence_done = true;
  }
}

void Oracle::pages_released(Node& node, const core::ReleasePages& released) {
  if (node.place().role == Role::kDecode) {
    decode_pages_released(node, released);
  } else {
    source_released(node, released);
  }
}

void Oracle::decode_pages_released(Node& decode, const core::ReleasePages& released) {
  const auto room = receivers_.find({&decode, released.owner});
  const bool was_granted = room != receivers_.end() && room->second.grant.has_value();
  const bool had_success = decode.cell(released.owner).status == KvPoll::kSuccess;
  if (was_granted && !had_success && world_.profile.transport_class().local_fence &&
      !grants_.at({&decode, *room->second.grant}).fence_done) {
    violate("S1", fmt::format("{}: grant {} is released before its fence is done", decode.name(),
                              room->second.grant->value()));
  }
  for_each_owner(decode.place(), released, [&](Owner& owner) {
    if (owner.receiver == released.owner && owner.use != Use::kFree) {
      owner = Owner{};
    } else if (owner.use == Use::kGranted) {
      // What a caller listed by mistake, and is in another's grant, must not look
      // free.
      violate("S1", fmt::format("{}: room {} releases what grant {} of receiver {} "
                                "holds",
                                decode.name(), released.room.value(), owner.grant.value(),
                                owner.receiver));
    }
  });
}

// --- sources ---

void Oracle::source_released(Node& prefill, const core::ReleasePages& released) {
  SenderFacts& sender = senders_[{&prefill, released.owner}];
  sender.released = true;
  const Cell& cell = prefill.cell(released.owner);
  const Duration hold = milliseconds(world_.profile.options.source_hold_timeout_ms);
  for (const WriteName& name : sender.names) {
    if (!world_.fabric.reads_source(name)) {
      continue;
    }
    // A give-up takes the hold time, by the process's own clock; a fence needs the target's word.
    const bool waited =
        cell.status == KvPoll::kFailed && world_.agenda.now() - cell.ended >= hold / 10 * 9;
    if (!waited && !writers_[name].fenced_received) {
      violate("S2",
              fmt::format("{}: source pages are released while writes read them", prefill.name()));
    }
  }
}

void Oracle::writes_posted(Node& prefill, const core::PostWrites& post) {
  TicketId& last = last_ticket_[post.session];
  for (const layout::Write& write : post.writes) {
    if (write.ticket <= last) {
      violate("S12", fmt::format("{}: ticket {} after {}", prefill.name(), write.ticket.value(),
                                 last.value()));
    }
    last = std::max(last, write.ticket);
    const WriteName name{post.session, write.slot, write.generation};
    tickets_.emplace(std::pair{post.session, write.ticket}, name);
    ++writer_of(name).posted;
    const auto key = by_name_.find(name);
    if (key == by_name_.end()) {
      violate("S8", prefill.name() + ": a write names a grant that nobody gave");
      continue;
    }
    const auto& slots = grants_.at(key->second).slots;
    const auto slot = std::ranges::find_if(slots, [&](const core::GrantedSlot& each) {
      return each.session == name.session && each.slot == name.slot;
    });
    if (!slot->extent.contains(write.target_region, write.target_item, write.offset_in_item,
                               write.length)) {
      violate("S8", fmt::format("{}: a write outside its writer's slice: region {} item {}",
                                prefill.name(), write.target_region.value(), write.target_item));
    }
  }
}

void Oracle::reading(Place& source, const WriteName& name, RegionId region, std::uint64_t offset,
                     std::uint64_t length) {
  const auto writer = writers_.find(name);
  if (writer == writers_.end() || writer->second.prefill == nullptr) {
    return;
  }
  const WriterFacts& facts = writer->second;
  if (senders_[{facts.prefill, facts.sender}].released &&
      facts.prefill->cell(facts.sender).status != KvPoll::kFailed) {
    violate("S2", fmt::format("{}: region {} offset {} length {} is read after its release",
                              source.name, region.value(), offset, length));
  }
}

// --- the target's bytes ---

bool Oracle::writing(Place& target, const WriteName& name, RegionId region, std::uint32_t item,
                     std::uint64_t offset, std::uint64_t length) {
  const auto refuse = [&](std::string_view invariant, std::string_view why) {
    violate(
        invariant,
        fmt::format("{}: a write of {} bytes to region {} item {} under slot {} generation {}: {}",
                    target.name, length, region.value(), item, name.slot.value(),
                    name.generation.value(), why));
    return false;
  };
  const auto key = by_name_.find(name);
  if (key == by_name_.end()) {
    return refuse("S1", "no such grant was given");
  }
  const GrantFacts& grant = grants_.at(key->second);
  if (&grant.decode->place() != &target) {
    return refuse("S8", "the grant is another place's");
  }
  const auto slot = std::ranges::find_if(grant.slots, [&](const core::GrantedSlot& each) {
    return each.session == name.session && each.slot == name.slot;
  });
  if (!slot->extent.contains(region, item, offset, length)) {
    return refuse("S8", "outside its writer's slice");
  }
  const Owner& owner = holdings_.at(target.index).by_region.at(region.value())->at(item);
  if (!grant.decode->is_alive() || owner.use != Use::kGranted || owner.grant != grant.grant) {
    return refuse("S1", "the grant does not hold it");
  }
  if (grant.fence_done) {
    return refuse("S1", "the grant's fence is done");
  }
  return true;
}

// --- messages and events ---

// Rule 7: an epoch is one session, and an ended one is never resumed.
void Oracle::session_opened(Node& node, const core::OpenDataSession& open) {
  Ends& ends = sessions_[open.epoch];
  const Node*& end = node.place().role == Role::kPrefill ? ends.prefill : ends.decode;
  if (end != nullptr) {
    violate("rule 7", node.name() + ": a session that had ended is opened again");
  }
  end = &node;
}

// Whose writes a name stands for: of the senders with the grant's room and binding the one that
// lives, else the newest. The core's own view is not asked.
Oracle::WriterFacts& Oracle::writer_of(const WriteName& name) {
  WriterFacts& writer = writers_[name];
  if (writer.sender != 0 || writer.prefill == nullptr) {
    return writer;
  }
  for (const std::uint64_t sender : senders_by_key_[{writer.prefill, writer.key}]) {
    const bool found_live =
        writer.sender != 0 && !is_terminal(writer.prefill->cell(writer.sender).status);
    writer.sender = found_live ? writer.sender : sender;
  }
  if (writer.sender != 0) {
    senders_[{writer.prefill, writer.sender}].names.push_back(name);
  }
  return writer;
}

void Oracle::frame_sent(Node& from, const wire::Frame& frame) {
  for (const wire::Message& message : frame.messages) {
    if (const auto* done = std::get_if<wire::Done>(&message)) {
      done_leaves(from, frame.session, *done);
    } else if (const auto* failed = std::get_if<wire::Failed>(&message)) {
      failed_leaves(from, frame.session, *failed);
    }
  }
}

// Done is the commit (rule 5): every ticket has landed, and the sender has not ended before that.
void Oracle::done_leaves(Node& prefill, SessionEpoch session, const wire::Done& done) {
  WriterFacts& writer = writer_of({session, done.slot, done.generation});
  if (std::exchange(writer.done_sent, true)) {
    return;
  }
  if (writer.landed + writer.refused != writer.posted || writer.landed != done.writes) {
    violate("S2", fmt::format("{}: Done of room {} with {} of {} writes landed", prefill.name(),
                              done.room.value(), writer.landed, writer.posted));
  }
  if (writer.landed_after_end) {
    violate("S2",
            fmt::format("{}: Done of room {} after its end", prefill.name(), done.room.value()));
  }
}

// Rule 12: who knew a sender before the grant came never says that nobody opened the room, but for
// a sender that came so late itself that this was its end.
void Oracle::failed_leaves(Node& prefill, SessionEpoch session, const wire::Failed& failed) {
  const auto name = by_attempt_.find({session, failed.attempt});
  const auto senders = senders_by_key_.find({&prefill, {failed.room, failed.binding}});
  const bool forgets = world_.profile.options.max_ended_senders < 2 * world_.profile.rooms;
  // A cause that was told by others is passed on as it is.
  const bool own_word =
      failed.cause.code == FailureCode::kRoomUnknown && failed.cause.where == FailureWhere::kLocal;
  if (!own_word || name == by_attempt_.end() || senders == senders_by_key_.end() || forgets) {
    return;
  }
  const Instant granted = writers_[name->second].granted;
  for (const std::uint64_t sender : senders->second) {
    const Cell& cell = prefill.cell(sender);
    const bool came_late = cell.failure && cell.failure->code == failed.cause.code;
    if (!came_late && senders_[{&prefill, sender}].opened < granted) {
      violate("rule 12", fmt::format("{}: room {} had a sender when its grant came: {}",
                                     prefill.name(), failed.room.value(), failed.cause.what));
    }
  }
}

void Oracle::prefix_published(Node& prefill, std::uint64_t sender, std::uint32_t prefix_pages) {
  const Request* request = world_.workload.find(prefill, sender);
  if (request != nullptr && !request->caller_errs && request->prefix_pages != prefix_pages) {
    violate("S4", fmt::format("{}: room {} has a prefix of {} pages, and its sender is told {}",
                              prefill.name(), request->key.room.value(), request->prefix_pages,
                              prefix_pages));
  }
}

void Oracle::session_over(Node& node, SessionEpoch session) {
  const auto complain = [&](std::uint64_t owner) {
    if (!is_terminal(node.cell(owner).status)) {
      violate("rule 7", fmt::format("{}: room {} outlives its session", node.name(),
                                    node.cell(owner).key.room.value()));
    }
  };
  const WriteName first{session, {}, {}};
  if (node.place().role == Role::kDecode) {
    for (auto it = by_name_.lower_bound(first);
         it != by_name_.end() && it->first.session == session; ++it) {
      complain(grants_.at(it->second).receiver);
    }
    return;
  }
  for (auto it = writers_.lower_bound(first); it != writers_.end() && it->first.session == session;
       ++it) {
    // One that still bootstraps has posted nothing: the writes were those of a namesake that is
    // gone.
    const std::uint64_t sender = it->second.sender;
    if (it->second.posted > 0 && node.cell(sender).status != KvPoll::kBootstrapping) {
      complain(sender);
    }
  }
}

void Oracle::event_taken(Node& node, const core::Event& event) {
  if (const auto* arrived = std::get_if<core::FrameArrived>(&event)) {
    for (const wire::Message& message : arrived->frame.messages) {
      message_taken(node, arrived->frame.session, message);
    }
  } else if (const auto* completed = std::get_if<core::WritesCompleted>(&event)) {
    for (const layout::WriteCompletion& each : completed->completions) {
      ticket_ended(each);
    }
  } else if (const auto* opened = std::get_if<core::SenderOpened>(&event)) {
    const std::uint64_t sender = opened->sender.value();
    status_since_[{&node, sender}] = world_.agenda.now();
    senders_by_key_[{&node, node.cell(sender).key}].push_back(sender);
    senders_[{&node, sender}].opened = world_.agenda.now();
  } else if (const auto* aborted = std::get_if<core::SenderAborted>(&event)) {
    senders_[{&node, aborted->sender.value()}].end_seen = true;
  } else if (const auto* cleared = std::get_if<core::SenderCleared>(&event)) {
    senders_[{&node, cleared->sender.value()}].end_seen = true;
  } else if (const auto* landed = std::get_if<core::WritesLanded>(&event)) {
    for (const layout::Landing& each : landed->landings) {
      ticket_landed({each.session, each.ticket});
    }
  } else if (const auto* receiver = std::get_if<core::ReceiverOpened>(&event)) {
    status_since_[{&node, receiver->receiver.value()}] = world_.agenda.now();
    receivers_.try_emplace({&node, receiver->receiver.value()});
  }
}

void Oracle::ticket_ended(const layout::WriteCompletion& completion) {
  const Ticket ticket{completion.session, completion.ticket};
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return;  // Told before: only the first word counts.
  }
  WriterFacts& writer = writers_[found->second];
  if (completion.outcome == layout::WriteOutcome::kLanded) {
    ++writer.landed;
    writer.landed_after_end =
        writer.landed_after_end || senders_[{writer.prefill, writer.sender}].end_seen;
  } else if (completion.outcome == layout::WriteOutcome::kRefused) {
    ++writer.refused;
    refused_.insert(ticket);
    check_word(ticket);
  }
  tickets_.erase(found);
}

void Oracle::ticket_landed(const Ticket& ticket) {
  landed_.insert(ticket);
  check_word(ticket);
}

// D1: what was refused never lands. Its range may have been posted again.
void Oracle::check_word(const Ticket& ticket) {
  if (landed_.contains(ticket) && refused_.contains(ticket)) {
    violate("D1", fmt::format("ticket {} was refused, and landed", ticket.second.value()));
  }
}

void Oracle::message_taken(Node& node, SessionEpoch session, const wire::Message& message) {
  if (const auto* grant = std::get_if<wire::Grant>(&message)) {
    const WriteName name{session, grant->slot, grant->generation};
    WriterFacts& writer = writers_[name];
    if (writer.prefill == nullptr && node.place().role == Role::kPrefill) {
      writer.prefill = &node;
      writer.key = {grant->room, grant->binding};
      writer.granted = world_.agenda.now();
      by_attempt_.try_emplace({session, grant->attempt}, name);
    }
  } else if (const auto* abort = std::get_if<wire::Abort>(&message)) {
    aborted_.insert({session, abort->attempt});
  } else if (const auto* done = std::get_if<wire::Done>(&message)) {
    const auto writer = writers_.find({session, done->slot, done->generation});
    if (writer != writers_.end()) {
      writer->second.done_received = true;
    }
  } else if (const auto* fenced = std::get_if<wire::Fenced>(&message)) {
    writers_[{session, fenced->slot, fenced->generation}].fenced_received = true;
  }
}

}  // namespace kvferry::sim
