// The attempts that a kvferry decode rank has with stock SGLang prefill ranks, and what each of
// these owes. Holds and answers; decode_translator.h acts on it. Pure.
//
// SGLang's messages name a room and a prefill rank, never an attempt: so one room number is held by
// one attempt at a time, until every prefill rank is known to be through with it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "base/peer_id.h"
#include "dialect/sglang/messages.h"
#include "kvferry/ids.h"

namespace kvferry::sglang {

// One prefill rank in one attempt.
struct DecodeTarget {
  std::uint32_t rank = 0;  // prefill_rank_id()
  RankEndpoint endpoint;
  PeerId peer;
  bool is_dummy = false;

  // --- the core's side; a dummy has no grant ---
  SessionEpoch epoch;  // in which it was granted; 0: not yet
  GrantSlot slot;
  Generation generation;
  std::uint64_t bytes = 0;  // what it will have written in the end
  bool done_said = false;
  bool drained_said = false;
  // Nothing more is awaited: Consumed or Abort came, or the session is over.
  bool core_is_through = false;

  // --- SGLang's side ---
  bool has_succeeded = false;
  bool has_spoken = false;  // a status of this room came: it has activated the room
  bool has_failed = false;  // said so
  bool has_acknowledged = false;
  bool is_lost = false;  // its endpoint; nothing will prove that it is through

  bool is_granted() const { return epoch != SessionEpoch{}; }
  // It writes no more.
  bool is_quiet() const { return has_succeeded || has_acknowledged; }
  // Nothing more is to be said to it.
  bool peer_is_through() const { return is_quiet() || is_lost; }
};

struct DecodeAttempt {
  enum class Phase : std::uint8_t {
    kGathering,  // the core's grants come, one for each writer; SGLang knows nothing yet
    kOpen,       // SGLang has metadata and with it the leave to write
    kAborting,   // ABORT is repeated until every rank has acknowledged
  };

  AttemptId id;
  RoomId room;
  Binding binding;
  Phase phase = Phase::kGathering;
  std::vector<DecodeTarget> targets;
  std::uint32_t page_count = 0;
  bool is_shared = false;  // several decode ranks take it from each prefill rank
  std::optional<std::uint32_t> aux_slot;
  bool failure_said = false;
  std::optional<Instant> due;  // of a repetition of ABORT, or of another look at the aux slot
  Duration repeat_after{};
  std::optional<Instant> aux_deadline;  // while all have succeeded and aux has not come

  DecodeTarget* find(std::uint32_t rank);
  DecodeTarget* find(PeerId peer, SessionEpoch epoch);  // as granted
  bool is_gathered() const;                             // every writer's grant is there
  bool has_succeeded() const;                           // every writer
  // Nobody owes anything: it can be forgotten.
  bool is_over() const;
};

class DecodeRooms {
 public:
  // max_unproven: how many room numbers are kept of which nothing proves the end.
  explicit DecodeRooms(std::size_t max_unproven) : max_unproven_(max_unproven) {}

  DecodeAttempt* find(AttemptId id);
  DecodeAttempt* find(RoomId room);
  std::size_t size() const { return attempts_.size(); }

  // The room number must not be taken.
  DecodeAttempt& open(AttemptId id, RoomId room);
  // Why the room number can't be given to a new attempt; nullopt when it can.
  std::optional<std::string_view> refusal(RoomId room) const;
  // A writer that was lost before it was quiet may still speak of the room, so the number is not
  // given again.
  void close(AttemptId id);

  // nullopt: nothing is due for it any more.
  void schedule(DecodeAttempt& attempt, std::optional<Instant> due);
  std::optional<Instant> next_due() const;
  std::vector<AttemptId> due_by(Instant now) const;

  // Ids of all attempts that have a target like this; the caller may close them one by one.
  template <typename Predicate>
  std::vector<AttemptId> with_target(Predicate predicate) const {
    std::vector<AttemptId> found;
    for (const auto& [id, attempt] : attempts_) {
      for (const DecodeTarget& target : attempt.targets) {
        if (predicate(target)) {
          found.push_back(id);
          break;
        }
      }
    }
    return found;
  }

 private:
  const std::size_t max_unproven_;
  std::map<AttemptId, DecodeAttempt> attempts_;
  std::map<RoomId, AttemptId> by_room_;
  std::set<std::pair<Instant, AttemptId>> timers_;
  std::unordered_set<RoomId> unproven_;
  bool lost_count_ = false;  // some room found no place there
};

}  // namespace kvferry::sglang
