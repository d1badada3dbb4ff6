// A transport whose every session tests its data path once, before anything depends on it: right
// after the hello prefill writes a page under a grant of its own into a scratch region that is
// registered beside the engine's regions, and the target compares what landed. The test takes the
// same way as any write (lane, receive gate, claim, fence), so that a pair is shown as ready only
// when that way works; what it finds comes as CompletionSink::path_tested().
//
// Wraps any transport that executes copies at the target. Nothing of the test is seen by the sink
// or counted against the caller's slots: it uses one slot more than max_grant_slots, a ticket and
// grant numbers that the core never gives, and the RegionId behind the last of the caller's.
#pragma once

#include <memory>

#include "data_plane/factory.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane {

// Makes the inner transport with `make` and a configuration that leaves room for the test. sink
// outlives the result. Without room for one more region (kMaxRegions are registered) no session is
// tested and each is reported as sound.
Result<std::unique_ptr<Transport>> make_tested_transport(const TransportMaker& make,
                                                         TransportConfig config,
                                                         CompletionSink& sink);

}  // namespace kvferry::data_plane
