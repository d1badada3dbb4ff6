// One sender of a prefill rank: the chunks it was given, and per decode rank the grant that they go
// to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "core/room_key.h"
#include "core/transition_table.h"
#include "kvferry/ids.h"
#include "kvferry/kv_poll.h"
#include "kvferry/status.h"
#include "layout/copy_plan.h"
#include "wire/messages.h"

namespace kvferry::core {

// One decode rank that this sender writes to.
struct Target {
  SessionEpoch epoch;
  wire::Grant grant;
  const layout::CopyPlan* plan = nullptr;  // owned by the session's record
  TargetState state = TargetState::kGranted;
  std::uint32_t posted_pages = 0;
  bool posted_all = false;          // aux and state too
  std::uint64_t outstanding = 0;    // tickets not settled
  std::uint64_t posted_writes = 0;  // ranges; one that is posted again counts once
  std::uint64_t posted_bytes = 0;
  std::uint64_t landed_writes = 0;
  std::uint64_t landed_bytes = 0;
  bool abort_seen = false;  // decode knows of the failure
  bool drained_sent = false;
  bool session_over = false;
  bool fenced = false;       // decode says: no write reads its source any more
  bool has_unknown = false;  // some ticket became unknown
};

class PrefillRoom {
 public:
  PrefillRoom(SenderId of, const RoomKey& named, Instant now)
      : sender(of), key(named), opened(now) {}

  bool apply(RoomTrigger trigger);
  static bool apply(Target& target, TargetTrigger trigger);

  bool is_terminal() const { return kvferry::is_terminal(status); }
  bool has_all_grants() const;
  bool has_all_chunks() const { return initialized && chunk_given && given.size() == page_count; }
  bool is_settled() const;  // no ticket reads a source page any more
  bool is_posted() const;   // to every target that is here
  // Every target that is here has answered Consumed; done_is_enough: or had our Done.
  bool is_consumed(bool done_is_enough = false) const;
  Target* find(SessionEpoch epoch, GrantSlot slot, Generation generation);
  Target* find(SessionEpoch epoch, AttemptId attempt);
  std::string waits_for() const;

  const SenderId sender;
  const RoomKey key;
  const Instant opened;
  std::uint32_t deadline_ms = 0;  // of the present status, from its beginning
  Instant deadline;
  KvPoll status = KvPoll::kBootstrapping;
  std::optional<Failure> cause;
  std::optional<Failure> own_cause;  // unless decode names another one by the deadline

  bool initialized = false;
  std::uint32_t page_count = 0;
  std::int64_t aux_slot = -1;
  bool chunk_given = false;
  std::vector<PageIndex> given;
  std::vector<std::uint32_t> state_slots;
  bool released = false;  // the source pages are the caller's again
  bool gave_up = false;
  bool cleared = false;

  std::vector<std::unique_ptr<Target>> targets;
};

}  // namespace kvferry::core
