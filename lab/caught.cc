#include "lab/caught.h"

#include <fmt/format.h>

#include <exception>

namespace kvferry::lab {

sim::RunResult run_caught(const sim::RunSeed& run, const sim::RunOptions& options) {
  try {
    return run(options);
  } catch (const std::exception& error) {
    sim::RunResult result;
    result.violation = sim::Violation{kCrash, error.what(), 0, Instant{}};
    return result;
  }
}

sim::RunResult run_twice(const sim::RunSeed& run, const sim::RunOptions& options) {
  sim::RunResult first = run_caught(run, options);
  sim::RunOptions quiet = options;
  quiet.log = sim::LogLevel::kNone;
  const sim::RunResult second = run_caught(run, quiet);
  if (!first.violation && (first.hash != second.hash || first.events != second.events)) {
    first.violation = sim::Violation{
        "M1",
        fmt::format("a second run of the seed took another way: {} events and trace {:016x}, then "
                    "{} events and trace {:016x}",
                    first.events, first.hash, second.events, second.hash),
        first.events, first.ended};
  }
  return first;
}

}  // namespace kvferry::lab
