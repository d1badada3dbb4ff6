// The controller of `kvferry bench handoff`: a pair of engines for each transport and the peer's
// command, and rounds in which each has one turn at the same concurrency, so that a figure and its
// reference saw the same machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/handoff/handoff_results.h"
#include "bench/handoff/room_loop.h"
#include "bench/transfer/worker_pair.h"

namespace kvferry::bench {

struct HandoffOptions {
  std::vector<std::string> transports = {"null", "shm", "tcp"};
  std::vector<std::uint32_t> concurrency = {1, 256, 8'192};
  std::string peer;          // its name; empty: none
  std::string peer_command;  // answers lines `rooms CONCURRENCY ROOMS`
  std::uint32_t rounds = 5;
  std::uint32_t growth_rounds = 7;  // 0: growth and poll_many are not measured
  double seconds = 1;               // of each turn, about
  std::uint32_t pages_per_room = 3;
  std::uint32_t layers = 2;
  std::uint32_t item_bytes = 256;
  bool curve = true;
};

struct HandoffOutcome {
  std::vector<RoomSeries> series;  // by concurrency, in the transports' order, the peer last
  RoomExtras extras;
  std::string peer_version;
  std::string peer_settings;
  std::string failure;  // what ended the bench early
};

HandoffOutcome run_handoff_bench(const HandoffOptions& options, const Hooks& hooks);

// Why a turn was no clean one; empty when all its rooms succeeded with the right bytes.
std::string fault_of(const SideResult& decode, const SideResult& prefill);

}  // namespace kvferry::bench
