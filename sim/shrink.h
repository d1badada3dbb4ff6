// Makes a failing seed's world smaller while it goes on failing in the same way: fewer rooms, fewer
// kinds of faults. The draws of what is left stay as they were (fault.h), so most schedules
// survive.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/simulation.h"

namespace kvferry::sim {

using RunSeed = std::function<RunResult(const RunOptions&)>;

inline constexpr std::uint32_t kMaxShrinkRuns = 200;

struct Shrunk {
  RunOptions options;      // what is left: rooms, faults
  RunResult result;        // of a run with them; its violation has the same invariant
  std::uint32_t runs = 0;  // what it took
};

// failed must have ended in a violation under options. rooms: how many the seed's profile has.
// stop is asked before each run; true ends the search with what it has.
Shrunk shrink(
    const RunOptions& options, const RunResult& failed, std::uint32_t rooms, const RunSeed& run,
    const std::function<bool()>& stop = [] { return false; });

}  // namespace kvferry::sim
