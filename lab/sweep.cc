#include "lab/sweep.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/prng.h"
#include "lab/caught.h"
#include "lab/in_order.h"
#include "sim/profile.h"

namespace kvferry::lab {
namespace {

void write_file(const std::string& folder, const FailedSeed& failed, const std::string& text) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  const std::string path = fmt::format("{}/{}.txt", folder, sim::seed_text(failed.options.seed));
  std::ofstream file(path);
  if (!(file << text).flush()) fmt::print(stderr, "kvferry sim: {} can't be written\n", path);
}

bool is_smaller(const sim::RunOptions& shrunk, const sim::RunOptions& whole) {
  return shrunk.rooms != whole.rooms || shrunk.faults != whole.faults;
}

bool can_shrink(const FailedSeed& failed) {
  // What does not repeat can't be searched for.
  return failed.result.violation->invariant != "M1" && !failed.options.canary;
}

}  // namespace

bool is_run_twice(std::uint64_t seed, std::uint32_t percent) {
  return Prng(~seed).below(100) < percent;
}

SweepResult sweep(const SimSettings& settings, const sim::RunSeed& run,
                  const std::function<bool()>& stop,
                  const std::function<void(std::uint64_t, std::size_t)>& report) {
  const auto options_of = [&](std::uint64_t index) {
    sim::RunOptions options = settings.run;
    options.seed = settings.sequence.at(index);
    return options;
  };
  SweepResult out;
  const auto work = [&](std::uint64_t index) {
    const sim::RunOptions options = options_of(index);
    return is_run_twice(options.seed, settings.check_twice_percent) ? run_twice(run, options)
                                                                    : run_caught(run, options);
  };
  const auto take = [&](std::uint64_t index, sim::RunResult result) {
    const sim::RunOptions options = options_of(index);
    out.tally.add(result);
    out.checked_twice += is_run_twice(options.seed, settings.check_twice_percent) ? 1 : 0;
    if (settings.is_single) out.single = result;
    if (result.violation) out.failures.push_back(FailedSeed{options, std::move(result)});
    if (report) report(index + 1, out.failures.size());
    return out.failures.size() < settings.max_failures;
  };
  in_order<sim::RunResult>(settings.seeds, settings.jobs, work, take, [&] {
    out.interrupted = stop();
    return out.interrupted;
  });
  // All may have been done when the signal came.
  out.interrupted = out.interrupted && out.tally.seeds() < settings.seeds;
  return out;
}

std::string explain_failure(const SimSettings& settings, const FailedSeed& failed,
                            const sim::RunSeed& run, bool with_shrinking,
                            const std::function<bool()>& stop) {
  sim::FailureReport report;
  report.version = settings.version;
  report.mutant = settings.mutant;
  report.options = failed.options;
  report.result = failed.result;
  if (with_shrinking && can_shrink(failed)) {
    const std::uint32_t rooms =
        sim::draw_profile(failed.options.seed, failed.options.faults, failed.options.rooms).rooms;
    const auto caught = [&](const sim::RunOptions& options) { return run_caught(run, options); };
    sim::Shrunk shrunk = sim::shrink(failed.options, failed.result, rooms, caught, stop);
    if (is_smaller(shrunk.options, failed.options)) report.shrunk = std::move(shrunk);
  }
  std::string text = sim::to_text(report);
  write_file(settings.failure_dir, failed, text);
  return text;
}

}  // namespace kvferry::lab
