// Many seeds, one verdict: the heart of `kvferry sim`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/sim_settings.h"
#include "lab/tally.h"
#include "sim/report.h"
#include "sim/shrink.h"

namespace kvferry::lab {

struct FailedSeed {
  sim::RunOptions options;
  sim::RunResult result;
};

struct SweepResult {
  Tally tally;  // of the seeds that ended
  std::uint64_t checked_twice = 0;
  std::vector<FailedSeed> failures;  // in the order of the seeds, at most max_failures
  bool interrupted = false;
  std::optional<sim::RunResult> single;  // of --seed
};

// Runs settings.seeds seeds of settings.sequence. The result is the same for any number of threads.
// stop is asked several times a second, from this thread; report may be null and is called with the
// number of seeds done and of failures.
SweepResult sweep(const SimSettings& settings, const sim::RunSeed& run,
                  const std::function<bool()>& stop,
                  const std::function<void(std::uint64_t, std::size_t)>& report);

// Whether this seed is of the share that is run twice; follows from the seed alone.
bool is_run_twice(std::uint64_t seed, std::uint32_t percent);

// The failure in words, shrunk when it can be (not the canary, not what is not reproducible), and
// left as DIR/0x....txt. A file that can't be written is said on stderr.
std::string explain_failure(const SimSettings& settings, const FailedSeed& failed,
                            const sim::RunSeed& run, bool with_shrinking,
                            const std::function<bool()>& stop);

}  // namespace kvferry::lab
