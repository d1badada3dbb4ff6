// `kvferry bench transfer --case NAME`: how a transport behaves when something goes on beside its
// work. Each case gives figures, some of them with a goal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/transfer/transfer_bench.h"

namespace kvferry::bench {

// The block that cases are run with, and what of the rate alone must be left beside a disturbance.
inline constexpr const char* kCaseBlock = "64K";
inline constexpr double kLeastBeside = 0.9;

// One figure of a case.
struct Figure {
  std::string engine;
  std::string name;
  double value = 0;
  std::string unit;
  std::string goal;  // empty: none
  bool is_met = true;
  // Not met, it fails the bench without --check, too: bytes were where they must not be.
  bool is_about_safety = false;
};

struct CaseOutcome {
  std::vector<Figure> figures;
  std::string failure;  // what ended the case early
};

// Names of the cases, in the order in which --case all runs them.
std::vector<std::string_view> case_names();

// Of options: engines (transports), seconds, rounds, pool, cores, lanes.
CaseOutcome run_case(std::string_view name, const TransferOptions& options, const Hooks& hooks);

// One case for one engine.
Result<std::vector<Figure>> run_fence_case(const std::string& engine,
                                           const TransferOptions& options, const Hooks& hooks);
Result<std::vector<Figure>> run_strangers_case(const std::string& engine,
                                               const TransferOptions& options, const Hooks& hooks);
Result<std::vector<Figure>> run_idle_case(const std::string& engine, const TransferOptions& options,
                                          const Hooks& hooks);

Result<std::vector<Figure>> run_target_stopped_case(const std::string& engine,
                                                    const TransferOptions& options,
                                                    const Hooks& hooks);
Result<std::vector<Figure>> run_killed_case(const std::string& engine,
                                            const TransferOptions& options, const Hooks& hooks);
Result<std::vector<Figure>> run_stopped_case(const std::string& engine,
                                             const TransferOptions& options, const Hooks& hooks);

}  // namespace kvferry::bench
