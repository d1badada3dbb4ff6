// One room of a decode rank: its writers, its grant and what has landed. Holds and checks; the
// protocol acts on what it says.
#pragma once

#include <algorithm>
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
  std::shared_ptr<const layout::CopyPlan> plan;
  SlotName name;
  std::optional<layout::GrantExtent> extent;
  std::optional<layout::CoverageSet> coverage;
  bool done = false;
  bool drained = false;             // quiet by its own word, every ticket accounted for
  bool torn_down = false;           // quiet by the proven teardown of its session, which is over
  std::uint64_t counted_bytes = 0;  // used only where coverage is no set (Guard::kCoverageSet)

  bool is_quiet() const { return drained || done || torn_down; }
};

class DecodeRoom {
 public:
  DecodeRoom(ReceiverId of, const RoomKey& named, Instant now)
      : receiver(of), key(named), opened(now) {}

  // Moves the state as the table says; false when the table has no such row.
  bool apply(RoomTrigger trigger);
  bool apply(GrantTrigger trigger);

  bool is_terminal() const { return kvferry::is_terminal(status); }
  // Its pages are in the ledger.
  bool holds_grant() const {
    return grant_state != GrantState::kNone && grant_state != GrantState::kConsumed &&
           grant_state != GrantState::kFree;
  }
  bool is_covered() const;
  bool all_done() const;
  bool all_quiet() const;
  // Whether a writer is quiet by nothing but its session's teardown.
  bool any_torn_down() const;
  // generation: nullopt means any.
  Writer* find_writer(SessionEpoch epoch, GrantSlot slot, std::optional<Generation> generation);
  // The first that has not said Done; else itself. Only where Guard::kDoneOnce is missing.
  Writer& undone_or(Writer& itself) {
    const auto found = std::ranges::find_if_not(writers, &Writer::done);
    return found == writers.end() ? itself : *found;
  }
  // Why the Done does not fit what was granted; nullopt when it does (rule 10).
  std::optional<std::string> mismatch(const wire::Done& done, const Writer& writer) const;
  // What the room waits for, for the text of its deadline's failure.
  std::string waits_for() const;

  const ReceiverId receiver;
  const RoomKey key;
  const Instant opened;
  std::uint32_t deadline_ms = 0;  // of the present status, from its beginning
  Instant deadline;
  KvPoll status = KvPoll::kBootstrapping;
  GrantState grant_state = GrantState::kNone;
  GrantId grant;
  AttemptId attempt;  // 0 until the grant
  bool fence_started = false;
  bool resolving = false;        // the registry was asked and has not answered
  bool cleared = false;          // the caller's handle is gone
  std::optional<Failure> cause;  // once Failed

  std::vector<PeerId> interests;     // the prefill ranks, once resolved, in the registry's order
  std::size_t sessions_missing = 0;  // of these
  std::vector<SessionEpoch> told;    // sessions in which something was said of this room
  std::vector<Writer> writers;
  std::optional<MetadataGiven> metadata;
  // After Success: what the caller owns, kept until it has read the Success or cleared the handle.
  GrantedPages owned;
};

}  // namespace kvferry::core
