// What the oracle asks when a status is published, and at the end.
#include <fmt/format.h>

#include <algorithm>

#include "sim/oracle.h"
#include "sim/world.h"

namespace kvferry::sim {

// --- statuses ---

void Oracle::status_published(Node& node, std::uint64_t owner, KvPoll from, KvPoll to) {
  if (to <= from || is_terminal(to)) {
    violate("S5", fmt::format("{}: room {} goes from {} to {}", node.name(),
                              node.cell(owner).key.room.value(), to_string(from), to_string(to)));
  }
  status_since_[{&node, owner}] = world_.agenda.now();
}

void Oracle::terminal_published(Node& node, std::uint64_t owner) {
  const Cell& cell = node.cell(owner);
  const bool decode = node.place().role == Role::kDecode;
  if (!decode && !cell.by_caller && cell.status == KvPoll::kFailed) {
    senders_[{&node, owner}].end_seen = true;
  }
  if (cell.status == KvPoll::kSuccess) {
    decode ? check_success(node, owner) : check_sender_success(node, owner);
  } else if (!cell.by_caller && cell.failure->code == FailureCode::kRoomTimeout &&
             cell.failure->where == FailureWhere::kLocal) {
    check_deadline(node, owner);
    if (node.has_unread_after_pause()) {
      violate("rule 13", fmt::format("{}: room {} times out while what came during the pause waits",
                                     node.name(), cell.key.room.value()));
    }
    if (!decode) {
      check_told(node, owner);
    }
  }
}

// S6: a room's deadline is its own state's, never one that was set for an earlier state.
void Oracle::check_deadline(Node& node, std::uint64_t owner) {
  const auto since = status_since_.find({&node, owner});
  const auto namesakes = senders_by_key_.find({&node, node.cell(owner).key});
  const bool inherits = node.place().role == Role::kPrefill && namesakes != senders_by_key_.end() &&
                        namesakes->second.front() != owner;
  if (since == status_since_.end() || inherits) {
    return;  // A sender of a request that ended before gets that one's cause (rule 12).
  }
  const Options& options = world_.profile.options;
  const std::string& what = node.cell(owner).failure->what;
  const auto waited = world_.agenda.now() - since->second;
  const std::uint32_t limit =
      what.find("Bootstrapping") != std::string::npos     ? options.bootstrap_timeout_ms
      : what.find("WaitingForInput") != std::string::npos ? options.input_timeout_ms
                                                          : options.transfer_timeout_ms;
  // Clocks drift by two percent at most.
  if (waited < milliseconds(limit) * 95 / 100) {
    violate("S6", fmt::format("{}: {} after {} of {} ms", node.name(), what,
                              std::chrono::duration_cast<milliseconds>(waited).count(), limit));
  }
}

// Rule 12: after the heal no sender waits for its own deadline when its decode has long failed. A
// pair that stays cut for good learns of it by the end of its session, which may come later.
void Oracle::check_told(Node& prefill, std::uint64_t sender) {
  const Options& options = world_.profile.options;
  const Duration patience = milliseconds(3 * options.retransmit_max_ms + 1'000);
  const Instant now = world_.agenda.now();
  if (!healed_at_ || now - *healed_at_ < patience) {
    return;
  }
  for (const WriteName& name : senders_[{&prefill, sender}].names) {
    const auto key = by_name_.find(name);
    if (key == by_name_.end()) {
      continue;
    }
    const Node& decode = *key->second.first;
    const Cell& cell = decode.cell(grants_.at(key->second).receiver);
    const bool long_failed = cell.status == KvPoll::kFailed && now - cell.ended > patience;
    const bool can_hear =
        world_.nemesis.is_healthy_pair(prefill.place().index, decode.place().index);
    if (long_failed && can_hear && decode.is_running() &&
        sessions_[name.session].decode == &decode && prefill.holds_session(name.session) &&
        decode.holds_session(name.session)) {
      violate("rule 12",
              fmt::format("{}: room {} was never told that {} had failed", prefill.name(),
                          prefill.cell(sender).key.room.value(), decode.name()));
    }
  }
}

// S4 and S7: Done of every writer, every writer finished by its own record, every byte as its
// source had it, one launch of the prefill engine.
void Oracle::check_success(Node& decode, std::uint64_t receiver) {
  const ReceiverFacts& room = receivers_.at({&decode, receiver});
  if (!room.grant) {
    violate("S4", decode.name() + ": success without a grant");
    return;
  }
  const GrantFacts& grant = grants_.at({&decode, *room.grant});
  if (world_.profile.transport_class().local_fence && !grant.fence_done) {
    violate("S1", fmt::format("{}: success of grant {} before its fence is done (rule 3)",
                              decode.name(), room.grant->value()));
  }
  std::optional<EngineEpoch> epoch;
  for (const core::GrantedSlot& slot : grant.slots) {
    const WriteName name{slot.session, slot.slot, slot.generation};
    const WriterFacts& writer = writers_[name];
    if (!writer.done_received || !writer.done_sent) {
      violate("S4", fmt::format("{}: success without Done of a writer", decode.name()));
    }
    if (const Node* prefill = sessions_[slot.session].prefill) {
      check_launch(decode, epoch, prefill->engine_epoch());
    }
  }
  if (epoch) {
    check_content(decode, room.metadata, {decode.cell(receiver).key.binding, *epoch}, "success");
  }
  for_each_owner(decode.place(), room.metadata, [&](Owner& owner) { owner.use = Use::kCaller; });
}

void Oracle::check_content(Node& decode, const core::MetadataGiven& metadata, const ContentKey& key,
                           std::string_view when) {
  EngineMemory& memory = decode.memory();
  for (std::uint32_t i = 0; i < metadata.pages.size(); ++i) {
    if (!memory.holds_page(metadata.pages[i], metadata.decode_prefix_pages + i, key)) {
      violate("S4",
              fmt::format("{}: page {} (position {}) differs from its source at {}", decode.name(),
                          metadata.pages[i].value(), metadata.decode_prefix_pages + i, when));
    }
  }
  for (std::uint32_t i = 0; i < metadata.state_slots.size(); ++i) {
    if (!memory.holds_state(metadata.state_slots[i], i, key)) {
      violate("S3", fmt::format("{}: state slot {} differs from its source at {}", decode.name(),
                                metadata.state_slots[i], when));
    }
  }
}

// Rule 8: what one success took part in is of one launch of the other engine.
void Oracle::check_launch(Node& node, std::optional<EngineEpoch>& launch, EngineEpoch epoch) {
  if (launch && *launch != epoch) {
    violate("rule 8", node.name() + ": a success mixes two launches of the other engine");
  }
  launch = epoch;
}

// S7: no sender succeeds where a decode rank that it served failed.
void Oracle::check_sender_success(Node& prefill, std::uint64_t sender) {
  std::optional<EngineEpoch> epoch;
  for (const WriteName& name : senders_[{&prefill, sender}].names) {
    const auto key = by_name_.find(name);
    if (key == by_name_.end()) {
      continue;
    }
    const Node& decode = *key->second.first;
    check_launch(prefill, epoch, decode.engine_epoch());
    const Cell& cell = decode.cell(grants_.at(key->second).receiver);
    if (cell.status != KvPoll::kSuccess) {
      violate("S7", fmt::format("{}: room {} succeeds, and {} says {}", prefill.name(),
                                prefill.cell(sender).key.room.value(), decode.name(),
                                to_string(cell.status)));
    }
  }
}

// Rule 6. Only for a turn in which nothing could leave quarantine.
void Oracle::check_cap(const Node& decode, std::span<const core::Event> events) {
  for (const core::Event& event : events) {
    const auto* opened = std::get_if<core::ReceiverOpened>(&event);
    if (opened != nullptr && decode.cell(opened->receiver.value()).status != KvPoll::kFailed) {
      violate("rule 6", fmt::format("{}: room {} is admitted with the quarantine at its cap",
                                    decode.name(), opened->room.value()));
    }
  }
}

// --- the end ---

// Rule 12: whoever could write for an attempt that failed has heard Abort, unless their session is
// over.
void Oracle::check_aborts() {
  for (const auto& [key, grant] : grants_) {
    const bool failed = grant.decode->cell(grant.receiver).status == KvPoll::kFailed;
    if (!failed || !grant.decode->is_running()) {
      continue;
    }
    for (const core::GrantedSlot& slot : grant.slots) {
      const Node* prefill = sessions_[slot.session].prefill;
      if (prefill != nullptr && prefill->is_running() && prefill->holds_session(slot.session) &&
          grant.decode->holds_session(slot.session) &&
          !aborted_.contains({slot.session, grant.attempt})) {
        violate("rule 12",
                fmt::format("{}: {} never heard Abort of attempt {}", grant.decode->name(),
                            prefill->name(), grant.attempt.value()));
      }
    }
  }
}

void Oracle::check_quiescence(Node& node, bool quarantine_allowed) {
  const core::Snapshot view = node.snapshot();
  const auto demand_zero = [&](std::uint64_t value, std::string_view what) {
    if (value != 0) {
      violate("R1", fmt::format("{}: {} {} are left", node.name(), value, what));
    }
  };
  demand_zero(view.room_count, "open rooms");
  if (!quarantine_allowed) {
    for (const core::RoomView& room : view.rooms) {
      violate("R1", fmt::format("{}: room {} is left: {}, {}", node.name(), room.room.value(),
                                room.state, room.grant_state));
    }
    demand_zero(view.grants, "grants");
    demand_zero(view.quarantined_pages, "pages in quarantine");
    demand_zero(view.tickets, "tickets");
  }
  const std::uint64_t tombstones =
      std::uint64_t{world_.profile.options.max_tombstones} * world_.places().size();
  if (view.tombstones > tombstones) {
    violate("R1", fmt::format("{}: {} tombstones", node.name(), view.tombstones));
  }
}

}  // namespace kvferry::sim
