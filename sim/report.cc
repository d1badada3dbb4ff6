#include "sim/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace kvferry::sim {

std::string seed_text(std::uint64_t seed) { return fmt::format("0x{:016x}", seed); }

std::string fault_list(const FaultSet& faults) {
  if (faults.all()) return "all";
  std::string out;
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    if (!faults.test(i)) continue;
    if (!out.empty()) out += ',';
    out += to_string(static_cast<Fault>(i));
  }
  return out.empty() ? "none" : out;
}

std::string grouped(std::uint64_t number) {
  const std::string digits = fmt::format("{}", number);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string replay_command(const RunOptions& options, std::string_view mutant) {
  std::string out = fmt::format("kvferry sim --seed {}", seed_text(options.seed));
  if (!mutant.empty()) out += fmt::format(" --mutant {}", mutant);
  if (options.canary) out += " --canary";
  if (options.rooms) out += fmt::format(" --rooms {}", *options.rooms);
  if (!options.faults.all()) out += fmt::format(" --faults {}", fault_list(options.faults));
  if (options.until_event) out += fmt::format(" --until {}", *options.until_event);
  return out;
}

std::string to_text(const FailureReport& report) {
  const Violation& violation = *report.result.violation;
  const double seconds = std::chrono::duration<double>(violation.at - Instant{}).count();
  std::string out =
      fmt::format("SIM FAILED  seed={} {} profile=swarm{}{}\n", seed_text(report.options.seed),
                  report.version, report.mutant.empty() ? "" : " mutant=", report.mutant);
  out += fmt::format("  invariant {}  {}\n", violation.invariant, violation.what);
  out += fmt::format("  event {} of {}, t={:.3f} s;  faults on: {}\n",
                     grouped(std::min(violation.event + 1, report.result.events)),
                     grouped(report.result.events), seconds,
                     report.result.fired_list.empty() ? "none" : report.result.fired_list);
  out += fmt::format("  world:   {}\n", report.result.profile_text);
  RunOptions replay = report.options;
  // The happening under way is the one after those that the violation has counted. A run that an
  // exception ended has no event number to stop at.
  if (violation.event > 0) replay.until_event = violation.event + 1;
  out += fmt::format("  replay:  {} --log full\n", replay_command(replay, report.mutant));
  if (report.shrunk) {
    out += fmt::format("  shrunk:  {}   ({} events)\n",
                       replay_command(report.shrunk->options, report.mutant),
                       grouped(report.shrunk->result.events));
  }
  return out;
}

}  // namespace kvferry::sim
