// One side of a session is killed or stopped in the middle of its work: when the other side knows
// how everything ended, and that nothing lands late.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "bench/transfer/case_bench.h"
#include "bench/transfer/results.h"

namespace kvferry::bench {
namespace {

constexpr std::uint32_t kDeadlineMs = 1'000;  // of every write, in these cases
constexpr double kMostKilledMs = 1'000;
constexpr double kMostStoppedMs = 1.1 * kDeadlineMs;
constexpr double kMostPostUs = 10'000;
// At full speed before the signal, and from SIGSTOP to SIGCONT.
constexpr milliseconds kBefore{300};
constexpr milliseconds kStopped{1'500};
constexpr milliseconds kBeside{1'000};
// So long that a busy machine makes no write of the healthy pair late.
constexpr std::uint32_t kBesideDeadlineMs = 5'000;

double millis(Duration duration) { return static_cast<double>(duration.count()) / 1e6; }
std::string most_ms(double value) { return fmt::format("at most {:.0f}", value); }

// A pair at full speed, and the instant of a signal to one of its processes.
class Lost {
 public:
  Lost(const std::string& engine, const TransferOptions& options, const Hooks& hooks)
      : engine_(engine), options_(options), workers_(hooks) {}

  Status begin(RunMode mode) {
    WorkerSetup setup = options_.setup;
    setup.write_timeout_ms = kDeadlineMs;
    if (auto started = workers_.start({engine_}, setup, options_.source_core, options_.target_core);
        !started) {
      return started;
    }
    if (auto ready = workers_.prepare(kCaseBlock); !ready) return ready;
    const RunOrder warm_up{Duration(0), setup.pool_bytes, 0};
    if (auto warm = workers_.run(engine_, warm_up); !warm) return tl::unexpected(warm.error());
    // Long enough to be at full speed when the signal comes.
    auto begun = workers_.begin(engine_, {std::chrono::hours(1), 0, 0, mode, 0});
    std::this_thread::sleep_for(kBefore);
    return begun;
  }
  void signal(pid_t pid, int number) {
    signalled_at_ = monotonic_now();
    ::kill(pid, number);
  }
  double ms_after_signal(Duration at) const { return millis(at - signalled_at_.since_start()); }
  WorkerPair& workers() { return workers_; }

 private:
  const std::string engine_;
  const TransferOptions& options_;
  WorkerPair workers_;
  Instant signalled_at_;
};

Figure longest_post(const std::string& engine, const PostResult& source) {
  const double post = static_cast<double>(source.post_max.count()) / 1e3;
  return {engine,
          "longest post() of one write",
          post,
          "us",
          fmt::format("at most {:.0f}", kMostPostUs),
          post <= kMostPostUs};
}

// A source with two targets, of which one is stopped: what the other one's rate has of that alone.
Result<std::vector<Figure>> beside_a_stopped_target(const std::string& engine,
                                                    const TransferOptions& options,
                                                    const Hooks& hooks) {
  WorkerSetup setup = options.setup;
  setup.write_timeout_ms = kBesideDeadlineMs;
  WorkerPair workers(hooks);
  if (auto started = workers.start({engine}, setup, options.source_core, options.target_core);
      !started) {
    return tl::unexpected(started.error());
  }
  if (auto ready = workers.prepare(kCaseBlock); !ready) return tl::unexpected(ready.error());
  const RunOrder warm_up{Duration(0), setup.pool_bytes, 0};
  if (auto warm = workers.run(engine, warm_up); !warm) return tl::unexpected(warm.error());
  Series alone{engine, kCaseBlock, false, {}, {}};
  Series beside{engine, kCaseBlock, false, {}, {}};
  PostResult worst;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    hooks.progress(fmt::format("target-stopped, {}: round {} of {} beside a healthy one", engine,
                               round + 1, options.rounds));
    for (const RunMode mode : {RunMode::kPlain, RunMode::kBesideStopped}) {
      // Measured once something lands, thus after the neighbour was stopped.
      auto turn = workers.run(engine, {kBeside, 1, 0, mode, 0});
      if (!turn) return tl::unexpected(turn.error());
      (mode == RunMode::kPlain ? alone : beside).gbps.push_back(turn->target.gbps());
      worst.unknown += turn->source.unknown;
      worst.post_max = std::max(worst.post_max, turn->source.post_max);
    }
  }
  const double ratio = ratio_of(beside, alone);
  Figure post = longest_post(engine, worst);
  post.name += " to it, another target served";
  return std::vector<Figure>{
      {engine, "another target's rate, alone", median(alone.gbps), "GB/s", {}, true},
      {engine, "another target's rate beside it", median(beside.gbps), "GB/s", {}, true},
      {engine, "their ratio by rounds", ratio, "", fmt::format("at least {:.2f}", kLeastBeside),
       ratio >= kLeastBeside},
      post,
      {engine, "writes to it, all unknown", static_cast<double>(worst.unknown), "", "some",
       worst.unknown > 0},
  };
}

}  // namespace

Result<std::vector<Figure>> run_killed_case(const std::string& engine,
                                            const TransferOptions& options, const Hooks& hooks) {
  hooks.progress(fmt::format("killed, {}: the source", engine));
  std::vector<Figure> figures;
  {
    Lost lost(engine, options, hooks);
    if (auto begun = lost.begin(RunMode::kSourceLost); !begun) return tl::unexpected(begun.error());
    lost.signal(lost.workers().source_pid(), SIGKILL);
    auto target = lost.workers().target_result();
    if (!target) return tl::unexpected(target.error());
    const double known = lost.ms_after_signal(target->known_at);
    const auto late = static_cast<double>(target->late_pages);
    const auto releases = static_cast<double>(target->releases);
    figures.push_back({engine, "source killed: all known at the target", known, "ms",
                       most_ms(kMostKilledMs), known <= kMostKilledMs});
    figures.push_back(
        {engine, "source killed: open grants fenced", releases, "", "some", target->releases > 0});
    figures.push_back(
        {engine, "source killed: pages with late bytes", late, "", "0", late == 0, true});
  }
  hooks.progress(fmt::format("killed, {}: the target", engine));
  Lost lost(engine, options, hooks);
  if (auto begun = lost.begin(RunMode::kTargetLost); !begun) return tl::unexpected(begun.error());
  lost.signal(lost.workers().target_pid(), SIGKILL);
  auto source = lost.workers().source_result();
  if (!source) return tl::unexpected(source.error());
  const double known = lost.ms_after_signal(source->known_at);
  figures.push_back({engine, "target killed: all known at the source", known, "ms",
                     most_ms(kMostKilledMs), known <= kMostKilledMs});
  return figures;
}

Result<std::vector<Figure>> run_stopped_case(const std::string& engine,
                                             const TransferOptions& options, const Hooks& hooks) {
  hooks.progress(fmt::format("stopped, {}", engine));
  Lost lost(engine, options, hooks);
  if (auto begun = lost.begin(RunMode::kSourceLost); !begun) return tl::unexpected(begun.error());
  const pid_t source_pid = lost.workers().source_pid();
  lost.signal(source_pid, SIGSTOP);
  std::this_thread::sleep_for(kStopped);
  ::kill(source_pid, SIGCONT);
  auto target = lost.workers().target_result();
  if (!target) return tl::unexpected(target.error());
  auto source = lost.workers().source_result();
  if (!source) return tl::unexpected(source.error());
  const double known = lost.ms_after_signal(target->known_at);
  const auto late = static_cast<double>(target->late_pages);
  const auto late_writes = static_cast<double>(source->refused + source->unknown);
  return std::vector<Figure>{
      {engine, fmt::format("all known at the target, deadline {} ms", kDeadlineMs), known, "ms",
       most_ms(kMostStoppedMs), known <= kMostStoppedMs},
      {engine, "open grants fenced", static_cast<double>(target->releases), "", "some",
       target->releases > 0},
      // One that is past its deadline when the source wakes is unknown there, and never sent again.
      {engine, "late writes, none of which landed", late_writes, "", "some", late_writes > 0},
      {engine, "of them refused", static_cast<double>(source->refused), "", {}, true},
      {engine, "pages with late bytes", late, "", "0", late == 0, true},
  };
}

Result<std::vector<Figure>> run_target_stopped_case(const std::string& engine,
                                                    const TransferOptions& options,
                                                    const Hooks& hooks) {
  hooks.progress(fmt::format("target-stopped, {}", engine));
  std::vector<Figure> figures;
  {
    Lost lost(engine, options, hooks);
    if (auto begun = lost.begin(RunMode::kTargetLost); !begun) return tl::unexpected(begun.error());
    lost.signal(lost.workers().target_pid(), SIGSTOP);
    auto source = lost.workers().source_result();
    if (!source) return tl::unexpected(source.error());
    const double known = millis(source->known_at - source->posted_at);
    figures = {
        longest_post(engine, *source),
        {engine, fmt::format("all known after the last post, deadline {} ms", kDeadlineMs), known,
         "ms", most_ms(kMostStoppedMs), known <= kMostStoppedMs},
        {engine, "writes unknown at their deadline", static_cast<double>(source->unknown), "",
         "some", source->unknown > 0},
    };
  }
  auto beside = beside_a_stopped_target(engine, options, hooks);
  if (!beside) return tl::unexpected(beside.error());
  figures.insert(figures.end(), beside->begin(), beside->end());
  return figures;
}

}  // namespace kvferry::bench
