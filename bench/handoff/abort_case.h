// `kvferry bench handoff --case aborts`: many rooms with real bytes, a tenth of them aborted at
// random states by one side or both. Says what is wrong, not how fast it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/handoff/handoff_pair.h"
#include "bench/transfer/case_bench.h"
#include "bench/transfer/worker_pair.h"

namespace kvferry::bench {

struct AbortCaseOptions {
  std::string transport = "tcp";
  std::uint64_t rooms = 40'960;
  std::uint32_t concurrency = 8'192;
  std::uint32_t abort_permille = 100;
  std::uint32_t page_bytes = 64U << 10;  // K and V of one layer
  std::uint32_t pages_per_room = 2;
  std::uint32_t patience_ms = 180'000;
  std::uint64_t seed = 1;
};

// Every figure but the first ones has the goal 0. before: the turn that warmed up, whose
// descriptors are what both processes may have.
std::vector<Figure> judge_aborts(const AbortCaseOptions& options, const PairTurn& before,
                                 const PairTurn& after);

CaseOutcome run_abort_case(const AbortCaseOptions& options, const Hooks& hooks);

}  // namespace kvferry::bench
