// Transport over lanes. The prefill side connects lanes to the decode side's doors and posts
// frames; the decode side moves each frame into its pages itself, past the receive gate. What
// carries a lane is a path: tcp between hosts, shm within one. A process has one of the two roles.
//
// Threads: a source has one loop; a target has receive_threads loops and the gate's fence thread.
#pragma once

#include <memory>
#include <string_view>

#include "data_plane/transport.h"

namespace kvferry::data_plane {

// Which paths a transport takes; kAuto takes shm where both sides are on one host and it works
// between them, else tcp (Transport::paths() says why).
enum class LaneChoice : std::uint8_t { kAuto, kTcp, kShm };

Result<std::unique_ptr<Transport>> make_lane_transport(LaneChoice choice,
                                                       const TransportConfig& config,
                                                       CompletionSink& sink);

}  // namespace kvferry::data_plane
