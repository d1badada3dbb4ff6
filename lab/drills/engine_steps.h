// Steps with rooms that span all ranks of two engines (rig/engine_pair.h): what steps.h has for two
// ranks. What is not as it must be at one of the participants becomes a finding that names it.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lab/drills/steps.h"
#include "lab/rig/engine_pair.h"

namespace kvferry::lab {

// No two participants that are awake may learn of a room's end further apart than that.
inline constexpr double kApartMs = 100;

// Every rank has told that the room is in the state.
Status await_room_status(std::span<LabRank* const> ranks, const RoomPlan& room, KvPoll status,
                         milliseconds patience);
// Granted at every rank, and nothing is sent.
Status open_held(DrillScene& scene, const EnginePair& pair, const RoomPlan& room,
                 milliseconds patience);

struct SpanEnd {
  std::vector<RoomEnd> ends;  // in the order of the ranks; empty when one has none
  double apart_ms = 0;        // between the first and the last
};
// The room ends with success at all of these or with a failure at all of them; of a failure they
// say the same first cause (I6); and they end together (I3), the more so with tight bounds.
Result<SpanEnd> expect_ends(DrillScene& scene, std::span<LabRank* const> ranks,
                            const RoomPlan& room, bool success, milliseconds patience);
Status expect_success(DrillScene& scene, const EnginePair& pair, const RoomPlan& room,
                      milliseconds patience);

// What every rank holds when it is idle, and that it holds no more than that again.
Result<std::vector<Census>> count_idle(DrillScene& scene, std::span<LabRank* const> ranks,
                                       std::int64_t pages, milliseconds patience);
Status expect_baseline(DrillScene& scene, std::span<LabRank* const> ranks,
                       const std::vector<Census>& before, milliseconds patience);

}  // namespace kvferry::lab
