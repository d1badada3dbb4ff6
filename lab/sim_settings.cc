#include "lab/sim_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "cli/command.h"

namespace kvferry::lab {
namespace {

// build/sim-failures for build/release/kvferry-lab.
std::string default_failure_dir() {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (program.parent_path().parent_path() / "sim-failures").string();
}

auto wrong(std::string_view what) { return fail(FailureCode::kInvalidArgument, std::string(what)); }

sim::LogLevel log_level(std::string_view word) {
  if (word == "brief") return sim::LogLevel::kBrief;
  return word == "full" ? sim::LogLevel::kFull : sim::LogLevel::kNone;
}

}  // namespace

SimSettings::SimSettings()
    : jobs(std::max(1U, std::thread::hardware_concurrency())), failure_dir(default_failure_dir()) {}

void SimSettings::declare(cli::Settings& settings) {
  settings.number<std::uint64_t>("seeds", "seeds", seeds, 1, 1'000'000'000,
                                 "how many seeds are run");
  settings.text("from", "SEED", from_,
                "the first seed: decimal or 0x and hex counts on from there; a commit's hash (7 to "
                "40 hex digits) gives seeds of that commit alone");
  settings.text("seed", "SEED", seed_, "run this one seed, written as for --from");
  settings.text("until", "EVENT", until_, "with --seed: stop at this event");
  settings.number<std::uint32_t>("rooms", "rooms", rooms_, 0, 200,
                                 "rooms of a run; 0 is what its seed draws");
  settings.text("faults", "LIST", faults_,
                "kinds of faults that may happen, by name with commas; all, none");
  settings.choice("log", log_, {"none", "brief", "full"},
                  "lines about what happens, on stderr; with them seeds run one after the other");
  settings.text("mutant", "NAME", mutant, "run with one guard missing");
  settings.optional_text("mutants", "[NAMES]", "all", mutants_,
                         "how many seeds it takes to notice each mutant: all of them, some (a,b,c) "
                         "or sample:N, drawn by the first seed");
  settings.number<std::uint64_t>("max_seeds", "seeds", max_seeds, 1, 1'000'000,
                                 "with --mutants: a mutant that survives so many is a survivor");
  settings.number<std::uint32_t>("jobs", "threads", jobs, 1, 1'024, "seeds at the same time");
  settings.number<std::uint32_t>("check_twice", "percent", check_twice_percent, 0, 100,
                                 "share of the seeds that is run twice, with equal traces");
  settings.flag("coverage_gate", coverage_gate,
                "fail when a kind of fault or a transition is hit too seldom");
  settings.flag("canary", canary_, "a run that must fail: exit 0 when it is noticed");
  settings.flag("fail_fast", fail_fast_, "stop at the first failure, as --max-failures 1 does");
  settings.number<std::uint64_t>("max_failures", "failures", max_failures, 1, 1'000'000,
                                 "stop after so many failures");
  settings.text("regressions", "FILE", regressions,
                "run the seeds of this file (tests/sim/regressions.txt)");
  settings.text("failure_dir", "DIR", failure_dir, "each failure is written to a file in here");
  settings.text("commit", "HASH", commit_, "named in reports in place of the version");
  settings.text("json", "FILE", json, "write the result as JSON; - is stdout");
}

Status SimSettings::check() {
  if (const Status status = check_modes(); !status) return status;
  if (const Status status = check_seeds(); !status) return status;
  if (const Status status = check_run(); !status) return status;
  if (fail_fast_) max_failures = 1;
  if (run.log != sim::LogLevel::kNone) jobs = 1;
  version = commit_.empty() ? fmt::format("version={}", cli::version())
                            : fmt::format("commit={}", commit_.substr(0, 12));
  return {};
}

Status SimSettings::check_modes() {
  const std::vector<std::pair<std::string_view, bool>> modes = {
      {"--mutants", !mutants_.empty()},
      {"--regressions", !regressions.empty()},
      {"--canary", canary_},
      {"--coverage-gate", coverage_gate},
      {"--mutant", !mutant.empty()}};
  std::string_view first;
  for (const auto& [name, is_given] : modes) {
    if (!is_given) continue;
    if (!first.empty()) return wrong(fmt::format("option {} does not go with {}", name, first));
    first = name;
  }
  if (!mutants_.empty()) mode = Mode::kMutants;
  if (!regressions.empty()) mode = Mode::kRegressions;
  if (canary_) mode = Mode::kCanary;
  const bool is_narrowed = !seed_.empty() || rooms_ > 0 || faults_ != "all";
  if (coverage_gate && is_narrowed) {
    return wrong("option --coverage-gate does not go with --seed, --rooms or --faults");
  }
  if (mode == Mode::kRegressions && is_narrowed) {
    return wrong("option --regressions does not go with --seed, --rooms or --faults");
  }
  return {};
}

Status SimSettings::check_seeds() {
  is_single = !seed_.empty();
  const auto parsed = parse_seeds(is_single ? seed_ : from_);
  if (!parsed) {
    return wrong(
        fmt::format("option {}: {}", is_single ? "--seed" : "--from", parsed.error().what));
  }
  sequence = *parsed;
  run.seed = sequence.first();
  if (is_single) seeds = 1;
  if (until_.empty()) return {};
  std::uint64_t event = 0;
  const char* end = until_.data() + until_.size();
  const auto [stop, error] = std::from_chars(until_.data(), end, event);
  if (error != std::errc{} || stop != end || event == 0) {
    return wrong(fmt::format("option --until: '{}' is no event's number", until_));
  }
  if (!is_single) return wrong("option --until needs --seed");
  run.until_event = event;
  return {};
}

Status SimSettings::check_run() {
  if (rooms_ > 0) run.rooms = rooms_;
  auto faults = sim::faults_from_list(faults_);
  if (!faults) return wrong(fmt::format("option --faults: {}", faults.error().what));
  run.faults = *faults;
  run.log = log_level(log_);
  run.canary = canary_;
  if (!mutant.empty()) {
    const auto found = select_mutants(mutant, 0);
    if (!found) return wrong(fmt::format("option --mutant: {}", found.error().what));
    if (found->size() != 1) return wrong("option --mutant takes one name; --mutants takes several");
    run.missing = found->front().missing;
  }
  if (mutants_.empty()) return {};
  auto chosen = select_mutants(mutants_, run.seed);
  if (!chosen) return wrong(fmt::format("option --mutants: {}", chosen.error().what));
  mutants = *std::move(chosen);
  hunts_all_mutants = mutants_ == "all";
  return {};
}

}  // namespace kvferry::lab
