// What an input makes happen to the subject: frames with right names and wrong values, replays,
// link and transport events, calls of its own caller, time, and now and then honest progress.
#pragma once

#include "input.h"
#include "room_world.h"

namespace kvferry::fuzz {

// One happening.
void act(Input& input, RoomWorld& world);

// Peers fall silent, fences end, every deadline passes: rooms must have ended, and every page of
// the subject must be back (with a local fence) or in quarantine.
void check_end(RoomWorld& world, bool local_fence);

}  // namespace kvferry::fuzz
