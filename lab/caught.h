// A run that can't take the others with it: what its code throws is a violation like others.
#pragma once

#include "sim/shrink.h"

namespace kvferry::lab {

// The invariant of such a violation; it has no event number.
inline constexpr const char* kCrash = "crash";

sim::RunResult run_caught(const sim::RunSeed& run, const sim::RunOptions& options);

// run, and run again: other events or another trace is a violation of M1.
sim::RunResult run_twice(const sim::RunSeed& run, const sim::RunOptions& options);

}  // namespace kvferry::lab
