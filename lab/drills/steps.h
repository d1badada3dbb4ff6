// What several drills do in the same way: rooms that must succeed, rooms that are held in a state,
// servers that must stay sound, figures that must come back to what they were. A room or a figure
// that is not as it must be becomes a finding; a Status that fails means that the drill could not
// be run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "data_plane/tcp/socket.h"
#include "kvferry/kv_poll.h"
#include "lab/drills/drill.h"
#include "lab/rig/process_figures.h"

namespace kvferry::lab {

// Both ends of a drill's rooms.
struct RankPair {
  LabRank& prefill;
  LabRank& decode;
};

// A metric of the rank's answer to "status", over all its labels; 0 when there is none.
double metric(const Told& status, std::string_view name);
Result<double> metric(LabRank& rank, std::string_view name);

// Opened at both ends, and ended with success at both within patience; else a finding.
Status expect_success(DrillScene& scene, RankPair pair, const RoomPlan& room,
                      milliseconds patience);
// The same of an end that comes, without opening anything.
Status expect_end(DrillScene& scene, LabRank& rank, const RoomPlan& room, bool success,
                  milliseconds patience);
// Until the rank has told that the room is in the state.
Status await_room_status(LabRank& rank, const RoomPlan& room, KvPoll status, milliseconds patience);
// Until the room's pages are the rank's own again.
Status await_returned(LabRank& rank, const RoomPlan& room, milliseconds patience);
// "send", "abort", "clear", "drop".
Status tell_room(LabRank& rank, std::string_view what, const RoomPlan& room);
// A room that its sender holds back, granted: decode is Transferring, prefill waits for its input.
Status open_held(DrillScene& scene, RankPair pair, const RoomPlan& room, milliseconds patience);

// How long d0 hears nothing before silence is death: queues to silent peers must be full before.
milliseconds silence_timeout(const DrillScene& scene);
// Detection may take a tenth more.
double most_silence_ms(const DrillScene& scene);
// The options of a decode rank whose queues are soon full: what waits for a peer is at most as much
// as one message may have.
std::vector<std::string> soon_full_options(const DrillScene& scene);
// Everything between the two goes through these from now on: control both ways, and the data.
Result<std::vector<support::Relay*>> relay_everything(Cluster& cluster, RankPair pair);
// Kills the rank and takes the port of its control link with a listener that never reads.
Result<data_plane::tcp::Listener> kill_and_squat(LabRank& rank);

// Its /readyz is good; a finding that names the problem, and when, if it is not.
Status expect_ready(DrillScene& scene, LabRank& rank, std::string_view when);
// What the rank holds once no room is left there and all of its so many pages are back.
Result<Census> count_idle(DrillScene& scene, LabRank& rank, std::int64_t pages,
                          milliseconds patience);
// As before, or it becomes so within patience; else findings (I4).
Status expect_baseline(DrillScene& scene, LabRank& rank, const Census& before,
                       milliseconds patience);

// The same of what the kernel says of a process; its memory may have grown by so much, where that
// tells anything (kMemoryTells). Waits for it within patience; what it was at last.
Result<ProcessFigures> expect_figures(DrillScene& scene, const std::string& name, pid_t pid,
                                      const ProcessFigures& before, std::int64_t growth_kib,
                                      milliseconds patience);

// When rooms (number and binding) ended at the rank in its present life, by its journal: on the
// clock of the host, whoever looks and however late.
using RoomEnds = std::map<std::pair<std::uint64_t, std::uint64_t>, Instant>;
Result<RoomEnds> ends_of(DrillScene& scene, LabRank& rank);

}  // namespace kvferry::lab
