// Rooms: what the core and SGLang say of them.
#include <fmt/format.h>

#include <algorithm>

#include "dialect/sglang/codec.h"
#include "dialect/sglang/decode_peer.h"
#include "layout/coverage.h"

namespace kvferry::sglang {

// --- what is said to the core ---

void DecodeTranslator::say_done(DecodeAttempt& attempt, DecodeTarget& target) {
  Peer* peer = find_live(target);
  if (peer == nullptr || target.done_said) {
    return;
  }
  target.done_said = true;
  wire::Done done;
  done.room = attempt.room;
  done.binding = attempt.binding;
  done.attempt = attempt.id;
  done.prefill_engine_epoch = kEngineEpoch;
  done.slot = target.slot;
  done.generation = target.generation;
  done.bytes = target.bytes;
  done.pages = attempt.page_count;
  say(*peer, done);
}

void DecodeTranslator::say_drained(DecodeAttempt& attempt, DecodeTarget& target) {
  Peer* peer = find_live(target);
  if (peer == nullptr || target.drained_said) {
    return;
  }
  target.drained_said = true;
  say(*peer, wire::Drained{attempt.id, target.slot, target.generation, true});
}

// Once for an attempt, in whichever of its sessions lives: the core ends it on all of them.
void DecodeTranslator::say_failed(DecodeAttempt& attempt, Failure cause) {
  for (const DecodeTarget& target : attempt.targets) {
    Peer* peer = target.is_granted() ? find_live(target) : nullptr;
    if (peer != nullptr && !attempt.failure_said) {
      attempt.failure_said = true;
      say(*peer, wire::Failed{attempt.room, attempt.binding, attempt.id, std::move(cause)});
    }
  }
}

// The Abort that follows is answered with Drained: nothing was told to SGLang.
void DecodeTranslator::refuse(Peer& peer, const wire::Grant& grant, std::string reason) {
  not_done("sglang_rooms_refused",
           fmt::format("room {} at {}: {}", grant.room.value(), peer.address.endpoint, reason));
  say(peer, wire::Failed{grant.room, grant.binding, grant.attempt,
                         Failure{FailureCode::kInvalidArgument, FailureWhere::kPeer,
                                 std::move(reason), peer.address.endpoint, -1}});
}

// --- what the core says ---

std::optional<std::string> DecodeTranslator::refusal(const Peer& peer,
                                                     const wire::Grant& grant) const {
  if (grant.room == RoomId(0) || grant.room.value() > kMaxRoom) {
    return fmt::format("room {}: SGLang's are 1 to {}", grant.room.value(), kMaxRoom);
  }
  if (!grant.state_slots.empty()) {
    return "state components are not served";
  }
  if (peer.pairing->is_dummy) {
    return "this prefill rank writes nothing here";
  }
  if (grant.aux_slot >= static_cast<std::int64_t>(shadow_.slot_count())) {
    return fmt::format("aux slot {} of {}", grant.aux_slot, shadow_.slot_count());
  }
  return std::nullopt;
}

// Every rank of the mapping, found among the peers of the same replica.
Result<std::vector<DecodeTarget>> DecodeTranslator::targets_of(const Peer& peer) const {
  std::vector<DecodeTarget> targets;
  for (const std::uint32_t number : prefill_rank_ids(peer.rank.shape, peer.pairing->mapping)) {
    const Peer* found = peer.rank.number() == number ? &peer : nullptr;
    for (const auto& [id, other] : peers_) {
      if (found == nullptr && other->is_live && other->rank.is_beside(peer.rank) &&
          other->rank.number() == number) {
        found = other.get();
      }
    }
    if (found == nullptr) {
      return fail(FailureCode::kPeerLost,
                  fmt::format("prefill rank {} of {} is not connected", number, peer.rank.registry),
                  FailureWhere::kPeer, peer.address.endpoint);
    }
    DecodeTarget target;
    target.rank = number;
    target.endpoint = found->rank.endpoint;
    target.peer = found->id;
    target.is_dummy = found->pairing->is_dummy;
    targets.push_back(std::move(target));
  }
  return targets;
}

void DecodeTranslator::on(Peer& peer, const wire::Grant& grant) {
  peer.aborted.erase(peer.aborted.begin(), peer.aborted.lower_bound(grant.low_water_mark));
  if (!peer.is_live || peer.aborted.contains(grant.attempt)) {
    return;
  }
  if (std::optional<std::string> reason = refusal(peer, grant)) {
    refuse(peer, grant, std::move(*reason));
    return;
  }
  DecodeAttempt* attempt = rooms_.find(grant.attempt);
  if (attempt == nullptr) {
    if (const auto taken = rooms_.refusal(grant.room)) {
      refuse(peer, grant, std::string(*taken));
      return;
    }
    if (rooms_.size() >= config_.max_rooms) {
      refuse(peer, grant, fmt::format("{} rooms are open here", rooms_.size()));
      return;
    }
    Result<std::vector<DecodeTarget>> targets = targets_of(peer);
    if (!targets) {
      refuse(peer, grant, targets.error().what);
      return;
    }
    attempt = &rooms_.open(grant.attempt, grant.room);
    attempt->binding = grant.binding;
    attempt->page_count = static_cast<std::uint32_t>(grant.pages.size());
    attempt->is_shared = peer.pairing->mapping.decode_ranks > 1;
    attempt->targets = std::move(*targets);
  }
  DecodeTarget* target = attempt->find(peer.rank.number());
  if (attempt->phase != DecodeAttempt::Phase::kGathering || target == nullptr ||
      target->is_granted()) {
    return;
  }
  target->peer = peer.id;
  target->endpoint = peer.rank.endpoint;
  target->epoch = peer.epoch;
  target->slot = grant.slot;
  target->generation = grant.generation;
  target->bytes = layout::GrantExtent(peer.pairing->page_slices, grant.pages,
                                      grant.aux_slot >= 0 ? peer.pairing->aux_slices
                                                          : std::vector<layout::ItemSlice>{},
                                      grant.aux_slot, {}, {})
                      .total_bytes();
  if (grant.aux_slot >= 0) {
    attempt->aux_slot = static_cast<std::uint32_t>(grant.aux_slot);
  }
  if (!attempt->is_gathered()) {
    return;
  }
  if (!attempt->aux_slot) {
    // Closed first: the Abort that follows finds nothing that SGLang was told.
    rooms_.close(grant.attempt);
    refuse(peer, grant, "SGLang sends aux with every room, and no aux slot is given");
    return;
  }
  tell(peer, *attempt, grant);
}

// SGLang hears of the room on all ranks at once, since each of them needs the aux slot, which the
// core names to one writer only.
void DecodeTranslator::tell(const Peer& peer, DecodeAttempt& attempt, const wire::Grant& grant) {
  shadow_.clear(*attempt.aux_slot);
  attempt.phase = DecodeAttempt::Phase::kOpen;
  for (const DecodeTarget& target : attempt.targets) {
    RoomTarget room;
    room.room = attempt.room;
    room.endpoint = own_endpoint();
    room.decode_ranks = peer.pairing->mapping.decode_ranks;
    if (!target.is_dummy) {
      room.pages = grant.pages;
      room.prefix_tokens =
          std::uint64_t{grant.decode_prefix_pages} * config_.self.layout.page_size_tokens;
    }
    ++endpoints_[to_text(target.endpoint)].users;
    if (const auto* mooncake = std::get_if<MooncakeRegistration>(&config_.registration)) {
      MooncakeMetadata metadata{std::move(room), mooncake->session, std::nullopt, {}};
      if (!target.is_dummy) {
        metadata.aux_index = *attempt.aux_slot;
      }
      send(target.endpoint, std::move(metadata));
    } else {
      send(target.endpoint,
           NixlMetadata{std::move(room), std::get<NixlRegistration>(config_.registration).agent,
                        *attempt.aux_slot, target.is_dummy});
    }
  }
}

void DecodeTranslator::on(Peer& peer, const wire::Consumed& consumed) {
  DecodeAttempt* attempt = rooms_.find(consumed.attempt);
  DecodeTarget* target = attempt == nullptr ? nullptr : attempt->find(peer.id, peer.epoch);
  if (target != nullptr) {
    target->core_is_through = true;
    close_if_over(consumed.attempt);
  }
}

void DecodeTranslator::on(Peer& peer, const wire::Abort& abort) {
  if (!peer.is_live) {
    return;
  }
  peer.aborted.erase(peer.aborted.begin(), peer.aborted.lower_bound(abort.low_water_mark));
  if (abort.attempt == AttemptId{}) {
    // The room ended before it was granted here. SGLang may have it waiting; where it knows it from
    // an attempt, that is aborted in its own name.
    if (rooms_.find(abort.room) == nullptr && abort.room.value() <= kMaxRoom) {
      send(peer.rank.endpoint, AbortRoom{abort.room, own_endpoint(), std::nullopt});
    }
    return;
  }
  DecodeAttempt* attempt = rooms_.find(abort.attempt);
  if (attempt != nullptr && attempt->phase == DecodeAttempt::Phase::kGathering) {
    rooms_.close(abort.attempt);
    attempt = nullptr;
  }
  DecodeTarget* target = attempt == nullptr ? nullptr : attempt->find(peer.id, peer.epoch);
  if (target == nullptr) {
    // SGLang was told nothing of it, or is through with it: attempts stay until it is.
    peer.aborted.insert(abort.attempt);
    say(peer, wire::Drained{abort.attempt, abort.slot, abort.generation, true});
    return;
  }
  target->core_is_through = true;
  start_abort(*attempt);
  if (target->is_quiet()) {
    say_drained(*attempt, *target);
  }
  close_if_over(abort.attempt);
}

void DecodeTranslator::start_abort(DecodeAttempt& attempt) {
  if (attempt.phase != DecodeAttempt::Phase::kOpen) {
    return;
  }
  attempt.phase = DecodeAttempt::Phase::kAborting;
  attempt.aux_deadline.reset();
  attempt.repeat_after = config_.repeat_min;
  repeat_abort(attempt);
}

// The generation is the attempt's number, which no other attempt has.
void DecodeTranslator::repeat_abort(DecodeAttempt& attempt) {
  bool open = false;
  for (const DecodeTarget& target : attempt.targets) {
    if (!target.peer_is_through()) {
      open = true;
      send(target.endpoint, AbortRoom{attempt.room, own_endpoint(), attempt.id.value()});
    }
  }
  rooms_.schedule(attempt, open ? std::optional(now_ + attempt.repeat_after) : std::nullopt);
  attempt.repeat_after = std::min(attempt.repeat_after * 2, config_.repeat_max);
}

// Call before what makes it true is noted.
void DecodeTranslator::release_endpoint(DecodeTarget& target) {
  if (!target.peer_is_through()) {
    --endpoints_[to_text(target.endpoint)].users;
    leave_if_unused(target.endpoint);
  }
}

void DecodeTranslator::close_if_over(AttemptId id) {
  DecodeAttempt* attempt = rooms_.find(id);
  if (attempt == nullptr || !attempt->is_over()) {
    return;
  }
  for (DecodeTarget& target : attempt->targets) {
    release_endpoint(target);  // of dummies, to which nothing had to be said
  }
  rooms_.close(id);
}

// --- what SGLang says ---

void DecodeTranslator::handle(const Message& message) {
  std::visit([this](const auto& body) { on(body); }, message);
}

template <typename Other>
void DecodeTranslator::on(const Other& message) {
  not_done("sglang_messages_not_served",
           fmt::format("{} is not served", kind_name(Message(message))));
}

void DecodeTranslator::on(const RoomStatus& status) {
  DecodeAttempt* attempt = rooms_.find(status.room);
  DecodeTarget* target = attempt == nullptr ? nullptr : attempt->find(status.prefill_rank);
  const auto refuse = [&](std::string_view why) {
    not_done("sglang_statuses_refused", fmt::format("status {} of room {} from prefill rank {}: {}",
                                                    static_cast<int>(status.status),
                                                    status.room.value(), status.prefill_rank, why));
  };
  if (attempt == nullptr || attempt->phase == DecodeAttempt::Phase::kGathering) {
    refuse("nothing is asked of it");
  } else if (target == nullptr || target->is_dummy) {
    refuse("this rank writes nothing for it");
  } else if (status.status != KvPoll::kSuccess && status.status != KvPoll::kFailed) {
    refuse("the policy prefill_complete is not offered");
  } else if (target->peer_is_through()) {
    refuse("this rank's end of it is known already");
  } else if (status.status == KvPoll::kSuccess) {
    succeeded(*attempt, *target);
  } else {
    target->has_spoken = true;
    target->has_failed = true;
    if (attempt->phase == DecodeAttempt::Phase::kOpen) {
      say_failed(*attempt,
                 at_peer(FailureCode::kUnspecified,
                         status.reason.empty() ? "prefill says that the room failed, and not why"
                                               : status.reason,
                         target->endpoint));
    }
  }
}

void DecodeTranslator::succeeded(DecodeAttempt& attempt, DecodeTarget& target) {
  release_endpoint(target);
  target.has_spoken = true;
  target.has_succeeded = true;
  if (attempt.phase == DecodeAttempt::Phase::kAborting) {
    // All that it will write has landed, so it is quiet, too.
    say_drained(attempt, target);
    close_if_over(attempt.id);
  } else if (attempt.failure_said) {
    return;  // the Abort is on its way
  } else if (attempt.has_succeeded()) {
    attempt.aux_deadline = now_ + config_.aux_timeout;
    look_at_aux(attempt);
  } else {
    say_done(attempt, target);
  }
}

// The last Done waits for the aux: its room number is what SGLang writes last.
void DecodeTranslator::look_at_aux(DecodeAttempt& attempt) {
  const std::uint64_t written = shadow_.room_number(*attempt.aux_slot);
  if (written == attempt.room.value()) {
    rooms_.schedule(attempt, std::nullopt);
    shadow_.deliver(*attempt.aux_slot, attempt.room, attempt.binding);
    for (DecodeTarget& target : attempt.targets) {
      if (!target.is_dummy) {
        say_done(attempt, target);
      }
    }
  } else if (written != 0 || now_ >= *attempt.aux_deadline) {
    rooms_.schedule(attempt, std::nullopt);
    say_failed(attempt,
               Failure{FailureCode::kAuxInvalid, FailureWhere::kPeer,
                       written != 0
                           ? fmt::format("aux of room {} came to the slot of room {}", written,
                                         attempt.room.value())
                           : fmt::format("every prefill rank says success, and no aux came within "
                                         "{} ms",
                                         config_.aux_timeout / std::chrono::milliseconds(1)),
                       to_text(attempt.targets.front().endpoint), -1});
  } else {
    rooms_.schedule(attempt, now_ + config_.aux_interval);
  }
}

void DecodeTranslator::on(const AbortAck& ack) {
  DecodeAttempt* attempt = rooms_.find(ack.room);
  DecodeTarget* target =
      attempt == nullptr || !ack.prefill_rank ? nullptr : attempt->find(*ack.prefill_rank);
  const auto refuse = [&](std::string_view counter, std::string_view why) {
    not_done(counter,
             fmt::format("ABORT_ACK of room {} from prefill rank {}, generation {}: {}",
                         ack.room.value(),
                         ack.prefill_rank ? fmt::format("{}", *ack.prefill_rank) : "(none)",
                         ack.generation ? fmt::format("{}", *ack.generation) : "(none)", why));
  };
  if (attempt == nullptr || attempt->phase != DecodeAttempt::Phase::kAborting) {
    refuse("sglang_acks_refused", "no such ABORT is open");
    return;
  }
  if (target == nullptr) {
    refuse("sglang_acks_refused", "this rank has no part in it");
    return;
  }
  if (ack.generation != attempt->id.value()) {
    refuse("sglang_acks_refused", "it was not asked for under this number");
    return;
  }
  if (target->peer_is_through()) {
    return;  // as often as the ABORT was said
  }
  if (attempt->is_shared && !target->is_dummy && !target->has_spoken) {
    refuse("sglang_acks_unproven",
           "it may not have heard of all decode ranks of the room, and write yet");
    return;
  }
  if (target->has_failed && is_nixl()) {
    // SGLang takes a write that NIXL ended with an error to be over; its bytes may come yet.
    refuse("sglang_acks_unproven", "it said that the room failed, which ends no write of NIXL's");
    return;
  }
  release_endpoint(*target);
  target->has_acknowledged = true;
  if (!target->is_dummy) {
    say_drained(*attempt, *target);
  }
  close_if_over(attempt->id);
}

void DecodeTranslator::on(const AuxData& data) {
  const DecodeAttempt* attempt = rooms_.find(data.room);
  const bool is_live = attempt != nullptr && attempt->phase == DecodeAttempt::Phase::kOpen &&
                       !attempt->failure_said && attempt->aux_slot == data.aux_index;
  if (!is_live || !shadow_.store(data.buffer, data.aux_index, data.bytes)) {
    not_done("sglang_aux_refused",
             fmt::format(
                 "AUX_DATA of room {} for buffer {}, slot {}, {} bytes: {}", data.room.value(),
                 data.buffer, data.aux_index, data.bytes.size(),
                 is_live ? "no such buffer, or of another length" : "the slot is not this room's"));
  }
}

}  // namespace kvferry::sglang
