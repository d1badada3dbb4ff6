#include "core/prefill_room.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvferry::core {

bool PrefillRoom::apply(RoomTrigger trigger) {
  const auto next = next_state(status, trigger);
  status = next.value_or(status);
  return next.has_value();
}

bool PrefillRoom::apply(Target& target, TargetTrigger trigger) {
  const auto next = next_state(target.state, trigger);
  target.state = next.value_or(target.state);
  return next.has_value();
}

bool PrefillRoom::has_all_grants() const {
  return !targets.empty() && targets.size() == targets.front()->grant.expected_grants;
}

bool PrefillRoom::is_settled() const {
  return std::ranges::all_of(targets, [](const auto& t) { return t->outstanding == 0; });
}

bool PrefillRoom::is_posted() const {
  return std::ranges::all_of(targets, [](const auto& t) { return t->posted_all; });
}

bool PrefillRoom::is_consumed(bool done_is_enough) const {
  return std::ranges::all_of(targets, [&](const auto& t) {
    return t->state == TargetState::kConsumed || (done_is_enough && t->state == TargetState::kDone);
  });
}

Target* PrefillRoom::find(SessionEpoch epoch, GrantSlot slot, Generation generation) {
  const auto found = std::ranges::find_if(targets, [&](const auto& t) {
    return t->epoch == epoch && t->grant.slot == slot && t->grant.generation == generation;
  });
  return found == targets.end() ? nullptr : found->get();
}

Target* PrefillRoom::find(SessionEpoch epoch, AttemptId attempt) {
  const auto found = std::ranges::find_if(
      targets, [&](const auto& t) { return t->epoch == epoch && t->grant.attempt == attempt; });
  return found == targets.end() ? nullptr : found->get();
}

std::string PrefillRoom::waits_for() const {
  if (status == KvPoll::kBootstrapping) {
    const std::string expected =
        targets.empty() ? "?" : std::to_string(targets.front()->grant.expected_grants);
    return fmt::format("grants ({} of {} are here)", targets.size(), expected);
  }
  if (!released && !has_all_chunks()) {
    return fmt::format("send() ({} of {} pages given)", given.size(), page_count);
  }
  std::uint64_t outstanding = 0;
  for (const auto& target : targets) {
    outstanding += target->outstanding;
  }
  if (outstanding > 0) {
    return fmt::format("{} writes", outstanding);
  }
  const auto missing = std::ranges::count_if(
      targets, [](const auto& t) { return t->state != TargetState::kConsumed; });
  return fmt::format("Consumed of {} of {} decode ranks", missing, targets.size());
}

}  // namespace kvferry::core
