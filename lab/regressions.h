// Seeds that once found a bug (tests/sim/regressions.txt): one line each,
//
//   SEED [--rooms N] [--faults LIST]  # one sentence: what was wrong
//
// and none of them may fail again. Empty lines and lines that begin with # are for readers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"
#include "sim/simulation.h"

namespace kvferry::lab {

struct Regression {
  std::size_t line = 0;
  sim::RunOptions options;
  std::string sentence;
};

// A failure names the line.
Result<std::vector<Regression>> parse_regressions(std::string_view text);
Result<std::vector<Regression>> read_regressions(const std::string& path);

}  // namespace kvferry::lab
