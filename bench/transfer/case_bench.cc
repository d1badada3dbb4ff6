#include "bench/transfer/case_bench.h"

#include <fmt/format.h>

#include <array>

namespace kvferry::bench {
namespace {

struct Case {
  std::string_view name;
  Result<std::vector<Figure>> (*run)(const std::string&, const TransferOptions&, const Hooks&);
};

constexpr std::array<Case, 6> kCases = {
    Case{"fence", &run_fence_case},   Case{"strangers", &run_strangers_case},
    Case{"idle", &run_idle_case},     Case{"target-stopped", &run_target_stopped_case},
    Case{"killed", &run_killed_case}, Case{"stopped", &run_stopped_case},
};

}  // namespace

std::vector<std::string_view> case_names() {
  std::vector<std::string_view> names;
  for (const Case& one : kCases) names.push_back(one.name);
  return names;
}

CaseOutcome run_case(std::string_view name, const TransferOptions& options, const Hooks& hooks) {
  CaseOutcome outcome;
  for (const Case& one : kCases) {
    if (one.name != name) continue;
    for (const std::string& engine : options.engines) {
      auto figures = one.run(engine, options, hooks);
      if (!figures) {
        outcome.failure = fmt::format("{}: {}", name, figures.error().what);
        return outcome;
      }
      outcome.figures.insert(outcome.figures.end(), figures->begin(), figures->end());
    }
  }
  return outcome;
}

}  // namespace kvferry::bench
