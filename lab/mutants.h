// The mutants: for each guard of the protocol (core/guards.h) and of the transports' model
// (sim/model_guard.h) the build of the same code without it. Each must be noticed by the simulator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"
#include "sim/world.h"

namespace kvferry::lab {

struct Mutant {
  std::string_view name;     // "ack-early"
  std::string_view without;  // what goes wrong in it, one sentence
  std::string_view where;    // "core", or "model of the transport"
  sim::Missing missing;
};

// One per guard, in the order of the enums.
std::vector<Mutant> all_mutants();

// "a,b", "all", or "sample:N": N of them, drawn by the seed. A failure names the word that is
// wrong.
Result<std::vector<Mutant>> select_mutants(std::string_view list, std::uint64_t seed);

}  // namespace kvferry::lab
