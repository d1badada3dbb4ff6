// Where a room of the subject can be when hostile input comes: one scene for each state of the
// transition tables (core/transition_table.h) that can be seen between two steps, and for the
// stages of a session. room_states_test.cc compares the list with the tables, so that a new state
// without a scene fails, and plays each scene to see that it ends where it says.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "core/transition_table.h"
#include "room_world.h"

namespace kvferry::fuzz {

struct Scene {
  std::string_view name;
  Role subject = Role::kDecode;
  // Transports without a local fence: their target does not execute the copy either.
  bool local_fence = true;
  // Of the subject's one room; nullopt when it has none.
  std::optional<KvPoll> room;
  std::optional<core::GrantState> grant;    // decode
  std::optional<core::TargetState> target;  // prefill; nullopt when there is none yet
  void (*play)(RoomWorld& world) = nullptr;
};

std::span<const Scene> scenes();

// A state of a table that no scene can show, and why.
struct HiddenState {
  std::string_view state;
  std::string_view why;
};
std::span<const HiddenState> hidden_states();

RoomWorld play(const Scene& scene);

}  // namespace kvferry::fuzz
