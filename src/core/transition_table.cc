#include "core/transition_table.h"

#include <array>

namespace kvferry::core {
namespace {

constexpr std::array<RoomTransition, 6> kRoom{{
    {KvPoll::kBootstrapping, RoomTrigger::kPeersReady, KvPoll::kWaitingForInput},
    {KvPoll::kBootstrapping, RoomTrigger::kFailed, KvPoll::kFailed},
    {KvPoll::kWaitingForInput, RoomTrigger::kStarted, KvPoll::kTransferring},
    {KvPoll::kWaitingForInput, RoomTrigger::kFailed, KvPoll::kFailed},
    {KvPoll::kTransferring, RoomTrigger::kCompleted, KvPoll::kSuccess},
    {KvPoll::kTransferring, RoomTrigger::kFailed, KvPoll::kFailed},
}};

constexpr std::array<GrantTransition, 15> kGrant{{
    {GrantState::kNone, GrantTrigger::kGrant, GrantState::kGranted},
    {GrantState::kGranted, GrantTrigger::kCoverageFull, GrantState::kCovered},
    {GrantState::kCovered, GrantTrigger::kFenceDone, GrantState::kFenced},
    {GrantState::kCovered, GrantTrigger::kAllQuiet, GrantState::kQuiet},
    {GrantState::kFenced, GrantTrigger::kSucceed, GrantState::kConsumed},
    {GrantState::kQuiet, GrantTrigger::kSucceed, GrantState::kConsumed},
    {GrantState::kGranted, GrantTrigger::kRevoke, GrantState::kRevoking},
    {GrantState::kCovered, GrantTrigger::kRevoke, GrantState::kRevoking},
    {GrantState::kRevoking, GrantTrigger::kFenceDone, GrantState::kFenced},
    {GrantState::kRevoking, GrantTrigger::kAllQuiet, GrantState::kQuiet},
    {GrantState::kRevoking, GrantTrigger::kTornDown, GrantState::kTornDown},
    {GrantState::kFenced, GrantTrigger::kRelease, GrantState::kFree},
    {GrantState::kQuiet, GrantTrigger::kRelease, GrantState::kFree},
    {GrantState::kTornDown, GrantTrigger::kRelease, GrantState::kFree},
    {GrantState::kNone, GrantTrigger::kRelease, GrantState::kFree},
}};

constexpr std::array<TargetTransition, 7> kTarget{{
    {TargetState::kGranted, TargetTrigger::kFirstPost, TargetState::kPosting},
    {TargetState::kPosting, TargetTrigger::kAllLanded, TargetState::kDone},
    {TargetState::kDone, TargetTrigger::kConsumed, TargetState::kConsumed},
    {TargetState::kGranted, TargetTrigger::kGiveUp, TargetState::kGivenUp},
    {TargetState::kPosting, TargetTrigger::kGiveUp, TargetState::kGivenUp},
    {TargetState::kDone, TargetTrigger::kGiveUp, TargetState::kGivenUp},
    {TargetState::kGivenUp, TargetTrigger::kSettled, TargetState::kDrained},
}};

template <typename State, typename Trigger, std::size_t N>
std::optional<State> look_up(const std::array<Transition<State, Trigger>, N>& table, State from,
                             Trigger trigger) {
  for (const auto& row : table) {
    if (row.from == from && row.trigger == trigger) {
      return row.to;
    }
  }
  return std::nullopt;
}

template <typename State, typename Trigger>
void print(std::string_view title, std::span<const Transition<State, Trigger>> table,
           std::string& out) {
  out.append(title).append("\n");
  for (const auto& row : table) {
    out.append("  ").append(to_string(row.from)).append(" --");
    out.append(to_string(row.trigger)).append("--> ").append(to_string(row.to)).append("\n");
  }
}

}  // namespace

std::span<const RoomTransition> room_transitions() { return kRoom; }
std::span<const GrantTransition> grant_transitions() { return kGrant; }
std::span<const TargetTransition> target_transitions() { return kTarget; }

std::optional<KvPoll> next_state(KvPoll from, RoomTrigger trigger) {
  return look_up(kRoom, from, trigger);
}
std::optional<GrantState> next_state(GrantState from, GrantTrigger trigger) {
  return look_up(kGrant, from, trigger);
}
std::optional<TargetState> next_state(TargetState from, TargetTrigger trigger) {
  return look_up(kTarget, from, trigger);
}

std::string_view to_string(RoomTrigger trigger) {
  switch (trigger) {
    case RoomTrigger::kPeersReady:
      return "peers-ready";
    case RoomTrigger::kStarted:
      return "started";
    case RoomTrigger::kCompleted:
      return "completed";
    case RoomTrigger::kFailed:
      return "failed";
  }
  return "?";
}

std::string_view to_string(GrantState state) {
  switch (state) {
    case GrantState::kNone:
      return "none";
    case GrantState::kGranted:
      return "granted";
    case GrantState::kCovered:
      return "covered";
    case GrantState::kFenced:
      return "fenced";
    case GrantState::kQuiet:
      return "quiet";
    case GrantState::kTornDown:
      return "torn-down";
    case GrantState::kRevoking:
      return "revoking";
    case GrantState::kConsumed:
      return "consumed";
    case GrantState::kFree:
      return "free";
  }
  return "?";
}

std::string_view to_string(GrantTrigger trigger) {
  switch (trigger) {
    case GrantTrigger::kGrant:
      return "grant";
    case GrantTrigger::kCoverageFull:
      return "coverage-full";
    case GrantTrigger::kFenceDone:
      return "fence-done";
    case GrantTrigger::kAllQuiet:
      return "all-quiet";
    case GrantTrigger::kTornDown:
      return "torn-down";
    case GrantTrigger::kRevoke:
      return "revoke";
    case GrantTrigger::kSucceed:
      return "succeed";
    case GrantTrigger::kRelease:
      return "release";
  }
  return "?";
}

std::string_view to_string(TargetState state) {
  switch (state) {
    case TargetState::kGranted:
      return "granted";
    case TargetState::kPosting:
      return "posting";
    case TargetState::kDone:
      return "done";
    case TargetState::kConsumed:
      return "consumed";
    case TargetState::kGivenUp:
      return "given-up";
    case TargetState::kDrained:
      return "drained";
  }
  return "?";
}

std::string_view to_string(TargetTrigger trigger) {
  switch (trigger) {
    case TargetTrigger::kFirstPost:
      return "first-post";
    case TargetTrigger::kAllLanded:
      return "all-landed";
    case TargetTrigger::kConsumed:
      return "consumed";
    case TargetTrigger::kGiveUp:
      return "give-up";
    case TargetTrigger::kSettled:
      return "settled";
  }
  return "?";
}

std::string print_transition_tables() {
  std::string out;
  print("room (decode and prefill)", room_transitions(), out);
  print("grant (decode)", grant_transitions(), out);
  print("target (prefill)", target_transitions(), out);
  return out;
}

}  // namespace kvferry::core
