#include "lab/mutant_hunt.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lab/caught.h"
#include "lab/in_order.h"
#include "router/json.h"
#include "sim/report.h"

namespace kvferry::lab {
namespace {

std::vector<std::uint64_t> kills(const HuntResult& result) {
  std::vector<std::uint64_t> out;
  for (const HuntedMutant& row : result.rows) {
    if (row.killed) out.push_back(row.seeds);
  }
  std::sort(out.begin(), out.end());
  return out;
}

HuntedMutant hunt(const Mutant& mutant, const SimSettings& settings, const sim::RunSeed& run,
                  const std::function<bool()>& stop) {
  HuntedMutant out;
  out.mutant = mutant;
  sim::RunOptions options = settings.run;
  options.missing = mutant.missing;
  while (!out.killed && out.seeds < settings.max_seeds && !stop()) {
    options.seed = settings.sequence.at(out.seeds++);
    const sim::RunResult result = run_caught(run, options);
    if (!result.violation) continue;
    // A seed that fails with every guard in place says nothing of the mutant.
    options.missing = sim::Missing{};
    const bool is_sound = !run_caught(run, options).violation;
    options.missing = mutant.missing;
    if (!is_sound) {
      out.broken_seed = options.seed;
      continue;
    }
    out.killed = true;
    out.killer = options.seed;
    out.invariant = result.violation->invariant;
  }
  return out;
}

}  // namespace

std::vector<std::string> HuntResult::survivors() const {
  std::vector<std::string> out;
  for (const HuntedMutant& row : rows) {
    if (!row.killed) out.emplace_back(row.mutant.name);
  }
  return out;
}

std::uint64_t HuntResult::median() const {
  const std::vector<std::uint64_t> sorted = kills(*this);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

std::uint64_t HuntResult::worst() const {
  const std::vector<std::uint64_t> sorted = kills(*this);
  return sorted.empty() ? 0 : sorted.back();
}

std::string HuntResult::problem(bool all_mutants) const {
  if (interrupted) return "interrupted";
  if (rows.empty()) return "no mutant was run";
  for (const HuntedMutant& row : rows) {
    if (row.broken_seed) {
      return fmt::format("seed {} fails without any mutant", sim::seed_text(*row.broken_seed));
    }
  }
  if (const auto names = survivors(); !names.empty()) {
    return fmt::format("not noticed: {}", fmt::join(names, ", "));
  }
  if (all_mutants && median() > kMedianLimit) {
    return fmt::format("the median is {} seeds, more than {}", median(), kMedianLimit);
  }
  return "";
}

HuntResult hunt_mutants(const SimSettings& settings, const sim::RunSeed& run,
                        const std::function<bool()>& stop,
                        const std::function<void(std::size_t)>& report) {
  HuntResult out;
  in_order<HuntedMutant>(
      settings.mutants.size(), settings.jobs,
      [&](std::uint64_t index) { return hunt(settings.mutants[index], settings, run, stop); },
      [&](std::uint64_t, HuntedMutant row) {
        // One that was cut off has survived nothing.
        const bool is_cut = !row.killed && row.seeds < settings.max_seeds;
        out.interrupted = out.interrupted || is_cut;
        if (!is_cut) out.rows.push_back(std::move(row));
        if (report) report(out.rows.size());
        return true;
      },
      stop);
  out.interrupted = out.interrupted || out.rows.size() < settings.mutants.size();
  return out;
}

std::string hunt_table(const HuntResult& result) {
  std::string out = fmt::format("{:<24} {:>8} {:<10} {:<18}  {:<23} {}\n", "mutant", "seeds",
                                "noticed by", "with seed", "where", "what goes wrong in it");
  for (const HuntedMutant& row : result.rows) {
    out += fmt::format("{:<24} {:>8} {:<10} {:<18}  {:<23} {}\n", row.mutant.name, row.seeds,
                       row.killed ? row.invariant : "NOTHING",
                       row.killed ? sim::seed_text(row.killer) : "", row.mutant.where,
                       row.mutant.without);
  }
  return out;
}

std::vector<std::string> hunt_json_rows(const HuntResult& result) {
  std::vector<std::string> out;
  for (const HuntedMutant& row : result.rows) {
    router::JsonObject object;
    object.text("name", row.mutant.name).boolean("killed", row.killed);
    if (row.killed) {
      object.integer("seeds_to_kill", static_cast<std::int64_t>(row.seeds))
          .text("invariant", row.invariant)
          .text("seed", sim::seed_text(row.killer));
    } else {
      object.raw("seeds_to_kill", "null").raw("invariant", "null").raw("seed", "null");
    }
    out.push_back(object.integer("seeds_run", static_cast<std::int64_t>(row.seeds))
                      .text("where", row.mutant.where)
                      .text("without", row.mutant.without)
                      .str());
  }
  return out;
}

}  // namespace kvferry::lab
