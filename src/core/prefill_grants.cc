// Grants on prefill: those that come, those that wait for their sender, those that are refused.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/prefill_protocol.h"
#include "layout/kv_layout.h"

namespace kvferry::core {

void PrefillProtocol::handle(SessionEpoch epoch, wire::Grant& grant) {
  SessionRecord& record = *records_.at(epoch);
  if (guards_.has(Guard::kLowWaterMark) && record.tombstones.is_below_mark(grant.attempt)) {
    sink_->count("stale_messages");
    sessions_.send_once(epoch, wire::Stale{grant.attempt, wire::kind_tag(wire::Message(grant))},
                        *sink_, now_);
    return;
  }
  if (const Tombstone* tombstone = record.tombstones.find(grant.attempt);
      tombstone && guards_.has(Guard::kTombstone)) {
    sink_->count("late_grants");
    if (tombstone->cause) {
      refuse_grant(epoch, grant, *tombstone->cause);
    }
    return;
  }
  if (guards_.has(Guard::kReceivedOnce) && record.attempts.contains(grant.attempt)) {
    sink_->count("duplicate_grants");
    return;
  }
  const RoomKey key{grant.room, grant.binding};
  if (record.tombstones.is_full(record.attempts.size()) ||
      record.tombstones.may_be_over(grant.attempt)) {
    const Failure cause{
        FailureCode::kTableFull,
        FailureWhere::kLocal,
        fmt::format(
            "{} ended attempts are remembered, there was no place for more (max_tombstones)",
            options_.max_tombstones),
        {},
        -1};
    refuse_grant(epoch, grant, cause);
    end_request(key, cause);
    return;
  }
  if (PrefillRoom* room = find(key)) {
    attach(*room, epoch, std::move(grant));
  } else if (const Failure* cause = ended_.find(match(key))) {
    refuse_grant(epoch, grant, *cause);
  } else {
    wait_for_sender(epoch, std::move(grant));
  }
}

// Says no for good: the attempt is remembered, so that nothing later revives it.
void PrefillProtocol::refuse_grant(SessionEpoch epoch, const wire::Grant& grant,
                                   const Failure& cause) {
  SessionRecord& record = *records_.at(epoch);
  record.tombstones.add(grant.attempt, cause);
  sessions_.send(epoch, wire::Failed{grant.room, grant.binding, grant.attempt, with_rank(cause)},
                 Urgency::kUrgent, OwnerId{}, now_, *sink_);
  sessions_.send(epoch, wire::Drained{grant.attempt, grant.slot, grant.generation, true},
                 Urgency::kUrgent, OwnerId{}, now_, *sink_);
}

void PrefillProtocol::wait_for_sender(SessionEpoch epoch, wire::Grant grant) {
  if (unopened_count_ >= options_.max_unopened_grants) {
    sink_->count("unopened_grants_refused");
    const Failure cause{FailureCode::kTableFull,
                        FailureWhere::kLocal,
                        fmt::format("{} grants wait for their sender (max_unopened_grants)",
                                    options_.max_unopened_grants),
                        {},
                        -1};
    refuse_grant(epoch, grant, cause);
    end_request({grant.room, grant.binding}, cause);
    return;
  }
  const RoomKey key = match({grant.room, grant.binding});
  auto& waiting = unopened_[key];
  if (std::ranges::any_of(waiting, [&](const UnopenedGrant& other) {
        return other.epoch == epoch && other.grant.attempt == grant.attempt;
      })) {
    sink_->count("duplicate_grants");
    return;
  }
  waiting.push_back(UnopenedGrant{epoch, std::move(grant)});
  ++unopened_count_;
  if (!unopened_timers_.is_set(key)) {
    unopened_timers_.set(key, now_ + milliseconds(options_.unopened_room_timeout_ms));
  }
}

void PrefillProtocol::adopt_unopened(PrefillRoom& room) {
  const auto found = unopened_.find(match(room.key));
  if (found == unopened_.end()) {
    return;
  }
  std::vector<UnopenedGrant> waiting = std::move(found->second);
  unopened_.erase(found);
  unopened_count_ -= waiting.size();
  unopened_timers_.cancel(match(room.key));
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
        unopened_timers_.cancel(it->first);
        unopened_.erase(it);
      }
      return;
    }
  }
}

void PrefillProtocol::unopened_deadline(const RoomKey& key) {
  end_request(key, Failure{FailureCode::kRoomUnknown,
                           FailureWhere::kLocal,
                           fmt::format("no sender opened room {} within {} ms "
                                       "(unopened_room_timeout_ms)",
                                       key.room.value(), options_.unopened_room_timeout_ms),
                           {},
                           -1});
}

// One of its attempts is over, and so is the request, everywhere (rule 12): its sender fails, or
// will when it comes, and grants that wait for it are refused.
void PrefillProtocol::end_request(const RoomKey& key, const Failure& cause) {
  if (PrefillRoom* room = find(key)) {
    fail_room(*room, cause);
  } else {
    remember_ended(key, cause);
    refuse_unopened(key, cause);
  }
}

// The sender that these grants wait for will not come.
void PrefillProtocol::refuse_unopened(const RoomKey& key, const Failure& cause) {
  const auto found = unopened_.find(match(key));
  if (found == unopened_.end()) {
    return;
  }
  const std::vector<UnopenedGrant> waiting = std::move(found->second);
  unopened_.erase(found);
  unopened_count_ -= waiting.size();
  unopened_timers_.cancel(match(key));
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
    if (guards_.has(Guard::kDecodeEngineEpoch) &&
        other->grant.decode_engine_epoch != grant.decode_engine_epoch) {
      return refuse(FailureCode::kEngineEpochMismatch,
                    "the grants are of two launches of the decode engine");
    }
    const bool alike = other->grant.expected_grants == grant.expected_grants &&
                       other->grant.pages.size() == grant.pages.size() &&
                       other->grant.decode_prefix_pages == grant.decode_prefix_pages;
    if (!alike && guards_.has(Guard::kGrantsAlike)) {
      return refuse(FailureCode::kDoneMismatch, "two decode ranks granted different amounts");
    }
  }
  if (guards_.has(Guard::kGrantFitsSender) && room.initialized &&
      grant.pages.size() != room.page_count) {
    return refuse(FailureCode::kDoneMismatch,
                  fmt::format("{} pages granted, the sender announced {}", grant.pages.size(),
                              room.page_count));
  }
  if (room.initialized && grant.aux_slot >= 0 && room.aux_slot < 0) {
    return refuse(FailureCode::kAuxInvalid, "decode expects aux, the sender has no aux slot");
  }
  if (const auto outside = layout::find_outside(session->peer_self.layout.regions, grant.pages,
                                                grant.aux_slot, grant.state_slots)) {
    return refuse(FailureCode::kOutsideGrant, "granted " + *outside);
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
  if (!has_needed_grants(room)) {
    return;
  }
  if (room.status == KvPoll::kBootstrapping) {
    sink_->publish_prefix(room.sender, guards_.has(Guard::kPrefix)
                                           ? room.targets.front()->grant.decode_prefix_pages
                                           : 0);
    enter(room, RoomTrigger::kPeersReady);
    sink_->publish_status(room.sender.value(), room.status);
    set_deadline(room, options_.input_timeout_ms);
  }
  pump(room);
}

}  // namespace kvferry::core
