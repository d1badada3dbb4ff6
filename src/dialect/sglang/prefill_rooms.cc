// The prefill translator's rooms: metadata and aborts that come from SGLang.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dialect/sglang/prefill_session.h"

namespace kvferry::sglang {

void PrefillTranslator::admit(const RoomRequest& request) {
  const auto found = sessions_.find(request.name);
  if (found == sessions_.end()) {
    refuse(request.flavour(), request.target,
           fmt::format("session {} is not registered here", request.name.second));
  } else if (const auto why = refusal(*found->second, request)) {
    refuse(request.flavour(), request.target, *why);
  } else {
    open_room(*found->second, request);
  }
}

std::optional<std::string> PrefillTranslator::refusal(const Session& session,
                                                      const RoomRequest& request) const {
  const RoomTarget& target = request.target;
  const std::uint64_t page_tokens = config_.self.layout.page_size_tokens;
  if (session.rank.endpoint != target.endpoint) {
    return fmt::format("session {} is that of {}", request.name.second,
                       to_text(session.rank.endpoint));
  }
  if (session.refused) {
    return session.refused;
  }
  if (target.room == RoomId{0}) {
    // SGLang's decode takes it for an aux slot that was not written.
    return "room 0 can't be used";
  }
  if (request.is_dummy) {
    return "a rank that sends nothing is not served";
  }
  if (!target.state_indices.empty() || request.has_device_pages) {
    return "state components and device pages are not served";
  }
  if (target.prefix_tokens % page_tokens != 0) {
    return fmt::format("a prefix of {} tokens is no multiple of the page size {}",
                       target.prefix_tokens, page_tokens);
  }
  if (session.attempts.contains(target.room)) {
    // The first may still be written: a second list of pages for it can't be taken back.
    return "this room is still open here";
  }
  if (is_unproven(target.endpoint, target.room)) {
    return "an earlier life of this room is not known to be over";
  }
  if (open_rooms_ >= config_.max_rooms ||
      session.attempts.size() >= config_.self.limits.max_grant_slots) {
    return fmt::format("{} rooms are open here, {} of this session", open_rooms_,
                       session.attempts.size());
  }
  return std::nullopt;
}

AttemptId PrefillTranslator::low_water_mark(const Session& session) const {
  AttemptId lowest = session.next_attempt;
  for (const auto& [room, attempt] : session.attempts) {
    lowest = attempt.is_granted ? std::min(lowest, attempt.id) : lowest;
  }
  return lowest;
}

void PrefillTranslator::open_room(Session& session, const RoomRequest& request) {
  Attempt& attempt = session.attempts[request.target.room];
  attempt.target = request.target;
  attempt.aux_index = request.aux_index;
  ++open_rooms_;
  if (session.over) {
    greet(session);
  }
  if (session.live) {
    grant(session, attempt);
  }
}

void PrefillTranslator::grant(Session& session, Attempt& attempt) {
  const RoomTarget& target = attempt.target;
  attempt.is_granted = true;
  attempt.id = std::exchange(session.next_attempt, session.next_attempt.next());
  attempt.generation = std::exchange(session.next_generation, session.next_generation.next());
  if (session.free_slots.empty()) {
    attempt.slot = std::exchange(session.next_slot, session.next_slot.next());
  } else {
    attempt.slot = session.free_slots.extract(session.free_slots.begin()).value();
  }
  wire::Grant message;
  message.room = target.room;
  message.attempt = attempt.id;
  message.low_water_mark = low_water_mark(session);
  message.decode_engine_epoch = EngineEpoch(1);
  message.slot = attempt.slot;
  message.generation = attempt.generation;
  message.expected_grants = target.decode_ranks;
  message.decode_prefix_pages =
      static_cast<std::uint32_t>(target.prefix_tokens / config_.self.layout.page_size_tokens);
  message.pages = target.pages;
  message.aux_slot = attempt.aux_index ? std::int64_t{*attempt.aux_index} : -1;
  say(session, std::move(message));
}

wire::Abort PrefillTranslator::abort_of(const Session& session, RoomId room) const {
  wire::Abort message;
  message.room = room;
  message.cause = {FailureCode::kAborted, FailureWhere::kPeer, "aborted by the decode rank",
                   to_text(session.rank.endpoint), -1};
  message.low_water_mark = low_water_mark(session);
  return message;
}

void PrefillTranslator::on(const AbortRoom& abort) {
  Session* session = abort.endpoint ? find(*abort.endpoint) : nullptr;
  if (session == nullptr) {
    not_done("sglang_aborts_of_strangers",
             fmt::format("ABORT of room {}: its sender is not registered", abort.room.value()));
    return;
  }
  wire::Abort message = abort_of(*session, abort.room);
  const auto found = session->attempts.find(abort.room);
  if (found != session->attempts.end() && found->second.is_granted) {
    Attempt& attempt = found->second;
    if (abort.generation) {
      attempt.abort_generation = abort.generation;
    }
    attempt.status_sent = true;  // who aborts needs no word of the failure
    message.attempt = attempt.id;
    message.slot = attempt.slot;
    message.generation = attempt.generation;
    say(*session, std::move(message));
    return;
  }
  if (found != session->attempts.end()) {
    session->attempts.erase(found);
    --open_rooms_;
  }
  if (is_unproven(*abort.endpoint, abort.room)) {
    not_done("sglang_aborts_unproven",
             fmt::format("ABORT of room {} of {}: its session ended before its writes did",
                         abort.room.value(), to_text(*abort.endpoint)));
    return;
  }
  // Nothing was granted to anybody under this session, so nothing will be written. A generation
  // says that the room's metadata came before; of one that succeeded since the core need not hear,
  // and must not, as without bindings it would take the next life of the number for this one.
  if (abort.generation && session->succeeded.contains(abort.room)) {
    acknowledge(*session, abort.room, *abort.generation);
    return;
  }
  if (session->live) {
    say(*session, std::move(message));
  } else if (!session->refused && session->early_aborts.size() < config_.max_rooms) {
    session->early_aborts.insert(abort.room);
    if (session->over) {
      greet(*session);
    }
  }
  if (abort.generation) {
    acknowledge(*session, abort.room, *abort.generation);
  }
}

// Nothing is owed for the room any more: its slot is free, and the room may come again.
void PrefillTranslator::finish(Session& session, RoomId room) {
  const auto found = session.attempts.find(room);
  session.free_slots.insert(found->second.slot);
  session.attempts.erase(found);
  --open_rooms_;
}

}  // namespace kvferry::sglang
