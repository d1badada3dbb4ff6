// What a failing seed says of itself (docs/invariants.md, "How a failure is reported and
// replayed"): one block of text with everything that a replay needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/shrink.h"
#include "sim/simulation.h"

namespace kvferry::sim {

struct FailureReport {
  std::string version;  // "commit=1a2b3c4" or "version=0.1.0"
  std::string mutant;   // its name, when a guard was missing on purpose
  RunOptions options;
  RunResult result;  // with a violation
  std::optional<Shrunk> shrunk;
};

// Ends with a newline. Everything in it follows from the seed.
std::string to_text(const FailureReport& report);

// "0x00000000075bcd15": as the reports write seeds and --seed reads them.
std::string seed_text(std::uint64_t seed);
// "kvferry sim --seed 0x... --rooms 2 --faults crash,replay": options that differ from the default
// only.
std::string replay_command(const RunOptions& options, std::string_view mutant);
// "crash,replay", "none" or "all".
std::string fault_list(const FaultSet& faults);
// 8412 becomes "8,412".
std::string grouped(std::uint64_t number);

}  // namespace kvferry::sim
