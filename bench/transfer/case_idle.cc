// What open sessions cost while nothing is sent: processor time and memory, of both processes.
#include <fmt/format.h>

#include "bench/transfer/case_bench.h"
#include "bench/transfer/idle_engine.h"

namespace kvferry::bench {
namespace {

constexpr Duration kRest = std::chrono::seconds(5);
constexpr double kMostPercent = 1.0;
// The pages are not what is measured here.
constexpr std::uint64_t kPoolBytes = 32U << 20;

double percent(Duration cpu) {
  return 100.0 * static_cast<double>(cpu.count()) / static_cast<double>(kRest.count());
}
double kibibytes_each(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 1024.0 / kIdleSessions;
}

}  // namespace

Result<std::vector<Figure>> run_idle_case(const std::string& engine, const TransferOptions& options,
                                          const Hooks& hooks) {
  hooks.progress(fmt::format("idle, {}: {} sessions rest", engine, kIdleSessions));
  const std::string name = std::string(kIdlePrefix) + engine;
  WorkerSetup setup = options.setup;
  setup.pool_bytes = kPoolBytes;
  WorkerPair workers(hooks);
  if (auto started = workers.start({name}, setup, options.source_core, options.target_core);
      !started) {
    return tl::unexpected(started.error());
  }
  if (auto ready = workers.prepare("64K"); !ready) return tl::unexpected(ready.error());
  auto rested = workers.run(name, {kRest, 0, 0});
  if (!rested) return tl::unexpected(rested.error());
  const double source = percent(rested->source.cpu);
  const double target = percent(rested->target.cpu);
  const std::string goal = fmt::format("both less than {:.0f}", kMostPercent);
  return std::vector<Figure>{
      {engine, fmt::format("source with {} sessions, of a core", kIdleSessions), source, "%", goal,
       source + target < kMostPercent},
      {engine, fmt::format("target with {} sessions, of a core", kIdleSessions), target, "%", goal,
       source + target < kMostPercent},
      {engine,
       "memory per session, source",
       kibibytes_each(rested->source.session_bytes),
       "KiB",
       {},
       true},
      {engine,
       "memory per session, target",
       kibibytes_each(rested->target.session_bytes),
       "KiB",
       {},
       true},
  };
}

}  // namespace kvferry::bench
