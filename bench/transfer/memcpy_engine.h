// The reference of shared memory: one thread of the target's process copies cold blocks out of the
// source's memfd into its own pool.
#pragma once

#include <memory>

#include "bench/transfer/engine.h"

namespace kvferry::bench {

std::unique_ptr<SourceEngine> make_memcpy_source();
std::unique_ptr<TargetEngine> make_memcpy_target(const Pool& pool);

}  // namespace kvferry::bench
