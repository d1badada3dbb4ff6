// A transport with many sessions that have nothing to do. Each one moves a single page first, so
// that all of them are known to be up.
#pragma once

#include <memory>
#include <string_view>

#include "bench/transfer/engine.h"

namespace kvferry::bench {

// An engine's name is this and the transport's.
inline constexpr std::string_view kIdlePrefix = "idle-";
inline constexpr std::uint32_t kIdleSessions = 64;

std::unique_ptr<SourceEngine> make_idle_source(std::string_view name, const WorkerSetup& setup,
                                               const Pool& pool);
std::unique_ptr<TargetEngine> make_idle_target(std::string_view name, const WorkerSetup& setup,
                                               const Pool& pool);

}  // namespace kvferry::bench
