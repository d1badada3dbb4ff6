// The fence under stale writes at full speed: how long a release takes, what it costs the other
// writes, and that no byte comes late.
#include <fmt/format.h>

#include "bench/transfer/case_bench.h"
#include "bench/transfer/results.h"

namespace kvferry::bench {
namespace {

// Rooms of 256 KiB, as many in flight as the window holds.
constexpr std::uint32_t kPagesPerGrant = 4;

double micros(Duration duration) { return static_cast<double>(duration.count()) / 1e3; }

}  // namespace

Result<std::vector<Figure>> run_fence_case(const std::string& engine,
                                           const TransferOptions& options, const Hooks& hooks) {
  const auto say = [&](std::string_view what) {
    hooks.progress(fmt::format("fence, {}: {}", engine, what));
  };
  say("filling the pools");
  WorkerPair workers(hooks);
  if (auto started =
          workers.start({engine}, options.setup, options.source_core, options.target_core);
      !started) {
    return tl::unexpected(started.error());
  }
  if (auto ready = workers.prepare(kCaseBlock, kPagesPerGrant); !ready) {
    return tl::unexpected(ready.error());
  }
  const RunOrder warm_up{Duration(0), options.setup.pool_bytes, 0};
  if (auto warm = workers.run(engine, warm_up); !warm) return tl::unexpected(warm.error());

  const Duration duration(static_cast<std::int64_t>(options.seconds * 1e9));
  Series plain{engine, kCaseBlock, false, {}, {}};
  Series fencing{engine, kCaseBlock, false, {}, {}};
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    say(fmt::format("round {} of {}", round + 1, options.rounds));
    for (const RunMode mode : {RunMode::kPlain, RunMode::kFencing}) {
      auto turn = workers.run(engine, {duration, 0, 0, mode, 0});
      if (!turn) return tl::unexpected(turn.error());
      (mode == RunMode::kPlain ? plain : fencing).gbps.push_back(turn->target.gbps());
    }
  }
  say(fmt::format("watching {} releases", options.releases));
  auto checked = workers.run(engine, {duration, 0, 0, RunMode::kFenceCheck, options.releases});
  if (!checked) return tl::unexpected(checked.error());

  const RunResult& target = checked->target;
  const double ratio = ratio_of(fencing, plain);
  const auto releases = static_cast<double>(target.releases);
  // Without stale writes the releases would have shown nothing.
  const auto stale = static_cast<double>(checked->source.refused + checked->source.unknown);
  return std::vector<Figure>{
      {engine, "goodput without early fences", median(plain.gbps), "GB/s", {}, true},
      {engine, "goodput while fencing", median(fencing.gbps), "GB/s", {}, true},
      {engine, "their ratio by rounds", ratio, "", fmt::format("at least {:.2f}", kLeastBeside),
       ratio >= kLeastBeside},
      {engine, "releases under stale writes", releases, "",
       fmt::format("at least {}", options.releases), target.releases >= options.releases},
      {engine, "stale writes, refused or cut", stale, "", "as many as releases", stale >= releases},
      {engine,
       "of them cut in the copy",
       static_cast<double>(checked->source.unknown),
       "",
       {},
       true},
      {engine, "pages with late bytes", static_cast<double>(target.late_pages), "", "0",
       target.late_pages == 0, true},
      {engine, "release p50", micros(target.release_p50), "us", {}, true},
      {engine, "release p99", micros(target.release_p99), "us", {}, true},
      {engine, "release most", micros(target.release_max), "us", {}, true},
  };
}

}  // namespace kvferry::bench
