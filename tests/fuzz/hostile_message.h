// Control messages made from an input: of any kind, with the names that are right for the scene or
// near them.
#pragma once

#include "input.h"
#include "room_world.h"

namespace kvferry::fuzz {

// The names that an attacker who reads along would use.
struct Names {
  SessionEpoch session;
  AttemptId attempt;
  GrantSlot slot;
  Generation generation;
  std::vector<PageIndex> pages;
  EngineEpoch peer_engine_epoch;
};
Names names_for(RoomWorld& world);

wire::Message hostile_message(Input& input, RoomWorld& world);

}  // namespace kvferry::fuzz
