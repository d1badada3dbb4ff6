#include "lab/cmd_sim.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "cli/interrupt.h"
#include "cli/report.h"
#include "lab/caught.h"
#include "lab/mutant_hunt.h"
#include "lab/progress.h"
#include "lab/regressions.h"
#include "lab/sim_settings.h"
#include "lab/sweep.h"
#include "sim/report.h"

namespace kvferry::lab {
namespace {

using sim::grouped;

// The invariant that the canary's landing breaks.
constexpr const char* kCanaryInvariant = "S1";
// With fewer seeds the shares say little.
constexpr std::uint64_t kSeedsForTable = 1'000;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string failed_row(const FailedSeed& failed) {
  const sim::Violation& violation = *failed.result.violation;
  return router::JsonObject()
      .text("kind", "failure")
      .text("seed", sim::seed_text(failed.options.seed))
      .text("invariant", violation.invariant)
      .text("what", violation.what)
      .integer("event", static_cast<std::int64_t>(violation.event))
      .text("faults", failed.result.fired_list)
      .str();
}

class SimInvocation final : public cli::Invocation {
 public:
  void declare(cli::Settings& settings) override { settings_.declare(settings); }
  Status check() override { return settings_.check(); }

  int run() override {
    const cli::Interrupt interrupt;
    stop_ = [&interrupt] { return interrupt.requested(); };
    // With --json - stdout holds nothing but the JSON object.
    text_ = settings_.json == "-" ? stderr : stdout;
    report_.command = "sim";
    std::string problem;
    switch (settings_.mode) {
      case SimSettings::Mode::kSeeds:
        problem = run_seeds();
        break;
      case SimSettings::Mode::kCanary:
        problem = run_canary();
        break;
      case SimSettings::Mode::kMutants:
        problem = run_mutants();
        break;
      case SimSettings::Mode::kRegressions:
        problem = run_regressions();
        break;
    }
    return conclude(problem);
  }

 private:
  // Each returns what is not as it should be; empty when all is.
  std::string run_seeds();
  std::string run_canary();
  std::string run_mutants();
  std::string run_regressions();

  std::string judge(const SweepResult& result);
  void show_single(const sim::RunResult& result);
  void explain(const std::vector<FailedSeed>& failures);
  int conclude(const std::string& problem);

  SimSettings settings_;
  std::function<bool()> stop_;
  std::FILE* text_ = stdout;
  cli::Report report_;
  std::string last_block_;  // of a failure: the last thing that is printed
};

std::string SimInvocation::run_seeds() {
  const auto begin = std::chrono::steady_clock::now();
  SweepResult result;
  {
    Progress progress;
    result = sweep(settings_, sim::run_seed, stop_, [&](std::uint64_t done, std::size_t failures) {
      progress.show(fmt::format("{} of {} seeds, {} failed", grouped(done),
                                grouped(settings_.seeds), failures));
    });
  }
  const double seconds = seconds_since(begin);
  const Tally& tally = result.tally;
  if (result.single) show_single(*result.single);
  if (settings_.coverage_gate || tally.seeds() >= kSeedsForTable) {
    fmt::print(text_, "{}\n", tally.table());
  }
  fmt::print(
      text_, "{} seeds from {}: {} events, {} violations; {} run twice, trace {:016x}; {:.1f} s\n",
      grouped(tally.seeds()), sim::seed_text(settings_.sequence.first()), grouped(tally.events()),
      result.failures.size(), grouped(result.checked_twice), tally.hash(), seconds);
  explain(result.failures);
  report_.rows = tally.json_rows();
  for (const FailedSeed& failed : result.failures) report_.rows.push_back(failed_row(failed));
  report_.summary.text("mode", "seeds")
      .text("first_seed", sim::seed_text(settings_.sequence.first()))
      .integer("seeds_wanted", static_cast<std::int64_t>(settings_.seeds))
      .integer("seeds", static_cast<std::int64_t>(tally.seeds()))
      .integer("violations", static_cast<std::int64_t>(result.failures.size()))
      .integer("run_twice", static_cast<std::int64_t>(result.checked_twice))
      .integer("events", static_cast<std::int64_t>(tally.events()))
      .text("trace", fmt::format("{:016x}", tally.hash()))
      .number("seconds", seconds);
  return judge(result);
}

std::string SimInvocation::judge(const SweepResult& result) {
  if (!result.failures.empty()) {
    return fmt::format("{} of {} seeds failed", result.failures.size(), result.tally.seeds());
  }
  if (result.interrupted) {
    return fmt::format("interrupted after {} of {} seeds", result.tally.seeds(), settings_.seeds);
  }
  if (settings_.run.until_event && result.single) {
    return fmt::format("stopped at event {}, before its verdict", grouped(result.single->events));
  }
  if (!settings_.coverage_gate) return "";
  const std::vector<std::string> shortfalls = result.tally.shortfalls();
  for (const std::string& shortfall : shortfalls) fmt::print(text_, "too seldom: {}\n", shortfall);
  return shortfalls.empty() ? "" : fmt::format("{} goals of coverage missed", shortfalls.size());
}

void SimInvocation::show_single(const sim::RunResult& result) {
  const double virtual_seconds = std::chrono::duration<double>(result.ended - Instant{}).count();
  fmt::print(text_,
             "seed {}: {}\n  {} events in {:.3f} s of its own time, trace {:016x}\n"
             "  rooms: {} succeeded, {} failed, {} unknown\n  faults: {}\n",
             sim::seed_text(settings_.run.seed), result.profile_text, grouped(result.events),
             virtual_seconds, result.hash, result.rooms_succeeded, result.rooms_failed,
             result.rooms_unknown, result.fired_list.empty() ? "none" : result.fired_list);
}

// One line and one file each; the first is shrunk and ends the output.
void SimInvocation::explain(const std::vector<FailedSeed>& failures) {
  for (const FailedSeed& failed : failures) {
    const bool is_first = &failed == failures.data();
    const std::string block = explain_failure(settings_, failed, sim::run_seed, is_first, stop_);
    if (is_first) last_block_ = block;
    fmt::print(text_, "failed: {}  {}  {}\n", sim::seed_text(failed.options.seed),
               failed.result.violation->invariant, failed.result.violation->what);
  }
}

std::string SimInvocation::run_canary() {
  const sim::RunResult result = run_caught(sim::run_seed, settings_.run);
  const std::string found = result.violation ? result.violation->invariant : "nothing";
  fmt::print(text_, "canary {}: noticed by {}{}{}\n", sim::seed_text(settings_.run.seed), found,
             result.violation ? ": " : "", result.violation ? result.violation->what : "");
  report_.summary.text("mode", "canary")
      .text("first_seed", sim::seed_text(settings_.run.seed))
      .text("noticed_by", found);
  if (found == kCanaryInvariant) return "";
  return fmt::format("the canary was to be noticed by {}, not by {}", kCanaryInvariant, found);
}

std::string SimInvocation::run_mutants() {
  const auto begin = std::chrono::steady_clock::now();
  HuntResult result;
  {
    Progress progress;
    result = hunt_mutants(settings_, sim::run_seed, stop_, [&](std::size_t done) {
      progress.show(fmt::format("{} of {} mutants", done, settings_.mutants.size()));
    });
  }
  const std::vector<std::string> survivors = result.survivors();
  fmt::print(text_,
             "{}\n{} mutants, {} survivors; seeds to notice one: median {}, worst {}; {:.1f} s\n",
             hunt_table(result), result.rows.size(), survivors.size(), result.median(),
             result.worst(), seconds_since(begin));
  std::vector<std::string> quoted;
  for (const std::string& name : survivors) quoted.push_back(router::json_quote(name));
  report_.rows = hunt_json_rows(result);
  report_.summary.text("mode", "mutants")
      .text("first_seed", sim::seed_text(settings_.sequence.first()))
      .integer("count", static_cast<std::int64_t>(result.rows.size()))
      .integer("killed", static_cast<std::int64_t>(result.rows.size() - survivors.size()))
      .integer("median", static_cast<std::int64_t>(result.median()))
      .integer("worst", static_cast<std::int64_t>(result.worst()))
      .integer("max_seeds", static_cast<std::int64_t>(settings_.max_seeds))
      .raw("survivors", router::json_array(quoted))
      .number("seconds", seconds_since(begin));
  return result.problem(settings_.hunts_all_mutants);
}

std::string SimInvocation::run_regressions() {
  const auto lines = read_regressions(settings_.regressions);
  report_.summary.text("mode", "regressions").text("file", settings_.regressions);
  if (!lines) return lines.error().what;
  std::vector<FailedSeed> failures;
  std::size_t done = 0;
  for (const Regression& line : *lines) {
    if (stop_()) break;
    sim::RunResult result = run_caught(sim::run_seed, line.options);
    ++done;
    fmt::print(text_, "line {}: {} {}  # {}\n", line.line, sim::seed_text(line.options.seed),
               result.violation ? "FAILED" : "ok", line.sentence);
    report_.rows.push_back(router::JsonObject()
                               .text("kind", "regression")
                               .integer("line", static_cast<std::int64_t>(line.line))
                               .text("seed", sim::seed_text(line.options.seed))
                               .boolean("ok", !result.violation)
                               .text("sentence", line.sentence)
                               .str());
    if (result.violation) failures.push_back(FailedSeed{line.options, std::move(result)});
  }
  fmt::print(text_, "{} of {} regressions run, {} came back\n", done, lines->size(),
             failures.size());
  report_.summary.integer("lines", static_cast<std::int64_t>(lines->size()))
      .integer("run", static_cast<std::int64_t>(done))
      .integer("violations", static_cast<std::int64_t>(failures.size()));
  explain(failures);
  if (!failures.empty()) return fmt::format("{} regressions came back", failures.size());
  return done < lines->size() ? "interrupted" : "";
}

int SimInvocation::conclude(const std::string& problem) {
  report_.ok = problem.empty();
  report_.summary.text("reason", problem);
  int code = problem.empty() ? cli::kExitTrue : cli::kExitFalse;
  if (!settings_.json.empty()) {
    const Status written = report_.write(settings_.json);
    if (!written) {
      fmt::print(stderr, "kvferry sim: {}\n", written.error().what);
      code = cli::kExitFalse;
    }
  }
  fmt::print(text_, "sim: {}\n{}", problem.empty() ? "PASS" : "FAIL " + problem, last_block_);
  std::fflush(text_);
  return code;
}

}  // namespace

const cli::Command& sim_command() {
  static const cli::Command command{
      "sim", "The protocol in a world of faults, with a proof that each of its guards is needed.",
      "Each seed is a world of its own: prefill and decode processes, their links, memory and "
      "callers,\n"
      "in virtual time, with faults of many kinds. An oracle that sees every byte checks the "
      "invariants\n"
      "of docs/invariants.md. The same seed gives the same run. A failure ends with the command "
      "that\n"
      "replays it.\n\n"
      "  kvferry sim --seeds 20000 --coverage-gate     many seeds, and that they were not vacuous\n"
      "  kvferry sim --seed 0x2a --until 512 --log full  one seed up to an event, line by line\n"
      "  kvferry sim --mutants                         seeds that it takes to notice each mutant",
      [] { return std::unique_ptr<cli::Invocation>(std::make_unique<SimInvocation>()); }};
  return command;
}

}  // namespace kvferry::lab
