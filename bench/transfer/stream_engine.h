// The reference of TCP: one plain stream with scatter and gather, straight out of and into the
// pools, and nothing but each frame's block numbers besides. No claims, no answers, no deadlines:
// what the socket gives.
#pragma once

#include <memory>

#include "bench/transfer/engine.h"

namespace kvferry::bench {

std::unique_ptr<SourceEngine> make_stream_source(const WorkerSetup& setup, const Pool& pool);
std::unique_ptr<TargetEngine> make_stream_target(const WorkerSetup& setup, const Pool& pool);

}  // namespace kvferry::bench
