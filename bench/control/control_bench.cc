#include "bench/control/control_bench.h"

#include <fmt/format.h>

#include <array>
#include <memory>

#include "base/clock.h"
#include "bench/control/control_end.h"
#include "bench/control/control_worker.h"
#include "bench/transfer/child.h"

namespace kvferry::bench {
namespace {

constexpr std::chrono::seconds kAnswerPatience{60};
constexpr std::array kEngines = {kPlainName, kPlainCurveName, kLinkName};

double microseconds_of(Duration time) { return static_cast<double>(time.count()) / 1e3; }

class ControlBench {
 public:
  ControlBench(const ControlOptions& options, const Hooks& hooks, ControlOutcome& outcome)
      : options_(options), hooks_(hooks), outcome_(outcome) {}
  ~ControlBench() {
    for (auto* end : {&ping_, &echo_}) {
      if (*end == nullptr) continue;
      if ((*end)->control.send({Kind::kQuit, {}, {}, {}})) {
        (*end)->child->wait_exit(std::chrono::seconds(2));
      }
    }
  }

  Status run() {
    if (auto started = start(); !started) return started;
    for (const std::uint32_t bytes : options_.sizes) {
      for (const std::uint32_t window : options_.windows) {
        if (auto done = run_block(bytes, window); !done) return done;
      }
    }
    return {};
  }

 private:
  Status start() {
    auto between = Channel::make_pair();
    if (!between) return tl::unexpected(between.error());
    for (auto* end : {&ping_, &echo_}) {
      const bool is_ping = end == &ping_;
      auto started = start_worker(std::string(is_ping ? kPingSideName : kEchoSideName),
                                  is_ping ? between->first : between->second);
      if (!started) return tl::unexpected(started.error());
      *end = std::make_unique<WorkerProcess>(std::move(*started));
    }
    for (const std::string_view engine : kEngines) {
      hooks_.progress(fmt::format("connecting {}", engine));
      if (auto asked = ask({Kind::kPrepare, {}, std::string(engine), {}}); !asked) return asked;
      for (WorkerProcess* end : {echo_.get(), ping_.get()}) {
        if (auto ready = answer(*end, Kind::kReady); !ready) return tl::unexpected(ready.error());
      }
    }
    return {};
  }

  Status run_block(std::uint32_t bytes, std::uint32_t window) {
    const std::size_t first = outcome_.series.size();
    for (const std::string_view engine : kEngines) {
      outcome_.series.push_back({std::string(engine), bytes, window, {}});
    }
    // The first round warms up.
    for (std::uint32_t round = 0; round <= options_.rounds; ++round) {
      hooks_.progress(fmt::format("{} bytes, {} under way: round {} of {}", bytes, window, round,
                                  options_.rounds));
      for (std::size_t turn = 0; turn < kEngines.size(); ++turn) {
        // Begins with another one each time, so that none always follows the same neighbour.
        ControlSeries& series = outcome_.series[first + (round + turn) % kEngines.size()];
        auto figures = take_turn(series, round == 0 ? 0.05 : options_.seconds);
        if (!figures) return tl::unexpected(figures.error());
        if (round > 0) series.turns.push_back(*figures);
      }
    }
    return {};
  }

  Result<ControlTurn> take_turn(const ControlSeries& series, double seconds) {
    const PingOrder order{series.bytes, series.window,
                          Duration(static_cast<std::int64_t>(seconds * 1e9))};
    if (auto asked = ask({Kind::kRun, order.numbers(), series.engine, {}}); !asked) {
      return tl::unexpected(asked.error());
    }
    auto pinged = answer(*ping_, Kind::kResult);
    if (!pinged) return tl::unexpected(pinged.error());
    auto echoed = answer(*echo_, Kind::kResult);
    if (!echoed) return tl::unexpected(echoed.error());
    const PingResult ping = PingResult::from(pinged->numbers);
    const PingResult echo = PingResult::from(echoed->numbers);
    const double messages = 2.0 * static_cast<double>(ping.round_trips);
    if (ping.round_trips == 0 || ping.duration <= Duration::zero()) {
      return fail(FailureCode::kUnspecified, series.engine + ": no frame came back");
    }
    return ControlTurn{messages * 1e9 / static_cast<double>(ping.duration.count()),
                       microseconds_of(ping.p50), microseconds_of(ping.p99),
                       microseconds_of(ping.cpu + echo.cpu) / messages};
  }

  Status ask(const Message& message) {
    for (WorkerProcess* end : {echo_.get(), ping_.get()}) {
      if (auto sent = end->control.send({message.kind, message.numbers, message.text, {}}); !sent) {
        return sent;
      }
    }
    return {};
  }

  Result<Message> answer(WorkerProcess& worker, Kind kind) {
    const Instant end = monotonic_now() + kAnswerPatience;
    while (monotonic_now() < end) {
      if (hooks_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
      auto received = worker.control.receive(std::chrono::milliseconds(50));
      if (!received) return tl::unexpected(received.error());
      if (!*received) continue;
      if ((*received)->kind == kind) return std::move(**received);
      return fail(FailureCode::kUnspecified, (*received)->text);
    }
    return fail(FailureCode::kOperatingSystem, "a worker does not answer");
  }

  const ControlOptions& options_;
  const Hooks& hooks_;
  ControlOutcome& outcome_;
  std::unique_ptr<WorkerProcess> ping_;
  std::unique_ptr<WorkerProcess> echo_;
};

}  // namespace

ControlOutcome run_control_bench(const ControlOptions& options, const Hooks& hooks) {
  ControlOutcome outcome;
  ControlBench bench(options, hooks, outcome);
  if (auto done = bench.run(); !done) outcome.failure = done.error().what;
  return outcome;
}

}  // namespace kvferry::bench
