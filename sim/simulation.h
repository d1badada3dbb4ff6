// One seed from its first event to its verdict: break it, heal it, demand an end, probe, clean up,
// look whether anything is left. Pure: no clock, no I/O but the log lines of trace.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/fault.h"
#include "sim/oracle.h"
#include "sim/trace.h"
#include "sim/world.h"

namespace kvferry::sim {

struct RunOptions {
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> until_event;  // stop there, without a verdict
  std::optional<std::uint32_t> rooms;
  FaultSet faults = FaultSet{}.set();
  LogLevel log = LogLevel::kNone;
  Missing missing;
  // A run that must fail: the oracle is told of a landing that nobody granted.
  bool canary = false;
};

struct RunResult {
  std::optional<Violation> violation;
  std::uint64_t events = 0;
  std::uint64_t hash = 0;
  Instant ended;
  std::string profile_text;  // one line: topology, transport, rooms
  std::array<std::uint32_t, kFaultKinds> fired{};
  std::string fired_list;
  // Rooms by their decode ranks' common end, with faults enabled in the seed or not.
  std::uint32_t rooms_succeeded = 0;
  std::uint32_t rooms_failed = 0;
  std::uint32_t rooms_unknown = 0;
  // How often each row of the transition tables was taken (transition_cells.h gives the names).
  std::vector<std::uint32_t> cells;
};

RunResult run_seed(const RunOptions& options);

}  // namespace kvferry::sim
