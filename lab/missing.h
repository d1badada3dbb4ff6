// The guard that a process of the lab runs without, by its mutant's name: one of the protocol's
// (lab/mutants.h) or one of the world around it (base/runtime_guards.h).
#pragma once

#include <string_view>
#include <vector>

#include "base/runtime_guards.h"
#include "kvferry/status.h"

namespace kvferry::lab {

struct RuntimeMutant {
  std::string_view name;     // "message-parts"
  std::string_view without;  // what goes wrong in it, one sentence
  RuntimeGuard missing = RuntimeGuard::kNone;
};

// One per guard, in the order of the enum.
std::vector<RuntimeMutant> runtime_mutants();

// For this whole process, before its first manager; empty: all guards stand. A name that is no
// mutant's, or that of a guard of the simulator's transports, is refused with the names there are.
Status run_without(std::string_view name);

}  // namespace kvferry::lab
