// The life of a room, of a grant (decode) and of a target (prefill) as data. The protocols move
// state only through next_state(); a pair that is not listed is a bug of ours and is reported as
// one. A test prints the tables and compares them with the stored copy (tests/unit/core/golden/).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kvferry/kv_poll.h"

namespace kvferry::core {

// Whose table it is.
enum class Machine : std::uint8_t { kRoom, kGrant, kTarget };

// Both roles. Prefill: kPeersReady is "every decode rank's grant is here", kStarted the first send.
enum class RoomTrigger : std::uint8_t { kPeersReady, kStarted, kCompleted, kFailed };

// Decode's grant; quarantine is the sum of all pages in kRevoking (design section 5).
enum class GrantState : std::uint8_t {
  kNone,
  kGranted,
  kCovered,
  kFenced,
  kQuiet,
  kTornDown,
  kRevoking,
  kConsumed,
  kFree
};
enum class GrantTrigger : std::uint8_t {
  kGrant,         // pages given, slots open at the transport
  kCoverageFull,  // every writer's set is full
  kFenceDone,     // transports with a local fence
  kAllQuiet,      // transports without: every writer's tickets are settled
  kTornDown,      // as kAllQuiet, and at least one writer is quiet by its session's teardown alone
  kRevoke,        // the room failed
  kSucceed,       // the caller's cell says Success
  kRelease,       // the room failed and the pages are safe
};

// Prefill's side of one grant.
enum class TargetState : std::uint8_t { kGranted, kPosting, kDone, kConsumed, kGivenUp, kDrained };
enum class TargetTrigger : std::uint8_t { kFirstPost, kAllLanded, kConsumed, kGiveUp, kSettled };

template <typename State, typename Trigger>
struct Transition {
  State from;
  Trigger trigger;
  State to;
};

using RoomTransition = Transition<KvPoll, RoomTrigger>;
using GrantTransition = Transition<GrantState, GrantTrigger>;
using TargetTransition = Transition<TargetState, TargetTrigger>;

std::span<const RoomTransition> room_transitions();
std::span<const GrantTransition> grant_transitions();
std::span<const TargetTransition> target_transitions();

std::optional<KvPoll> next_state(KvPoll from, RoomTrigger trigger);
std::optional<GrantState> next_state(GrantState from, GrantTrigger trigger);
std::optional<TargetState> next_state(TargetState from, TargetTrigger trigger);

std::string_view to_string(RoomTrigger trigger);
std::string_view to_string(GrantState state);
std::string_view to_string(GrantTrigger trigger);
std::string_view to_string(TargetState state);
std::string_view to_string(TargetTrigger trigger);

// All three tables as text, one transition a line.
std::string print_transition_tables();

}  // namespace kvferry::core
