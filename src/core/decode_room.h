// One room of a decode rank: its writers, its grant and what has landed. Holds and checks; the
// protocol acts on what it says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "core/event.h"
#include "core/page_ledger.h"
#include "core/room_key.h"
#include "core/slot_allocator.h"
#include "core/transition_table.h"
#include "kvferry/kv_poll.h"
#include "layout/copy_plan.h"
#include "layout/coverage.h"
#include "layout/rank_map.h"

namespace kvferry::core {

// One prefill rank that writes to this room.
struct Writer {
  PeerId peer;
  SessionEpoch epoch;          // 0 until the session lives, and after it ended
  SessionEpoch granted_epoch;  // the session in which the slot was given
  layout::Writer part;
  std::optional<layout::CopyPlan> plan;
  SlotName name;
  std::unique_ptr<layout::GrantExtent> extent;
  std::unique_ptr<layout::CoverageSet> coverage;  // refers to extent
  bool done = false;
  bool drained = false;  // quiet by its own word, every ticket accounted for
};

class DecodeRoom {
 public:
  DecodeRoom(ReceiverId of, AttemptId numbered, const RoomKey& named, Instant now)
      : receiver(of), attempt(numbered), key(named), opened(now) {}

  // Moves the state as the table says; false when the table has no such row.
  bool apply(RoomTrigger trigger);
  bool apply(GrantTrigger trigger);

  bool is_terminal() const { return kvferry::is_terminal(status); }
  bool is_covered() const;
  bool all_done() const;
  bool all_drained() const;
  Writer* find_writer(SessionEpoch epoch, GrantSlot slot, Generation generation);
  // Why the Done does not fit what was granted; nullopt when it does (rule 10).
  std::optional<std::string> mismatch(const wire::Done& done, const Writer& writer) const;
  // What the room waits for, for the text of its deadline's failure.
  std::string waits_for() const;

  const ReceiverId receiver;
  const AttemptId attempt;
  const RoomKey key;
  const Instant opened;
  KvPoll status = KvPoll::kBootstrapping;
  GrantState grant_state = GrantState::kNone;
  GrantId grant;
  bool fence_started = false;
  bool resolving = false;        // the registry was asked and has not answered
  bool cleared = false;          // the caller's handle is gone
  std::optional<Failure> cause;  // once Failed

  std::vector<PeerId> interests;     // the prefill ranks, once resolved, in the registry's order
  std::size_t sessions_missing = 0;  // of these
  std::vector<SessionEpoch> told;    // sessions in which something was said of this attempt
  std::vector<Writer> writers;
  std::optional<MetadataGiven> metadata;
  // After Success: what the caller owns, kept until it has read the Success or cleared the handle.
  GrantedPages owned;
};

}  // namespace kvferry::core
