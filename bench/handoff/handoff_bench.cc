#include "bench/handoff/handoff_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "bench/handoff/handoff_pair.h"
#include "bench/transfer/child.h"
#include "router/json.h"

namespace kvferry::bench {
namespace {

// A turn is at least so many rooms for each lane, so that its beginning and its end weigh little.
constexpr std::uint64_t kLeastRoomsPerLane = 4;
constexpr std::uint64_t kLeastPeerRoomsPerLane = 2;
constexpr std::uint64_t kLeastRooms = 200;
// The first turn meets cold memory and says little of how many rooms a turn takes; the second is as
// long as that told.
constexpr std::uint32_t kWarmUps = 2;
constexpr std::chrono::milliseconds kPeerPatience{150'000};

std::uint64_t rooms_for(double rooms_per_s, double seconds, std::uint32_t concurrency,
                        std::uint64_t least_per_lane) {
  const auto wanted = static_cast<std::uint64_t>(rooms_per_s * seconds);
  const std::uint64_t rooms =
      std::max({wanted, kLeastRooms, least_per_lane * std::uint64_t{concurrency}});
  return (rooms + concurrency - 1) / concurrency * concurrency;
}

double milliseconds_of(Duration time) { return static_cast<double>(time.count()) / 1e6; }

TurnFigures figures_of(const PairTurn& turn) {
  const auto rooms = static_cast<double>(turn.decode.succeeded);
  return {rooms * 1e9 / static_cast<double>(turn.decode.duration.count()),
          milliseconds_of(turn.decode.p50), milliseconds_of(turn.decode.p99),
          static_cast<double>((turn.decode.cpu + turn.prefill.cpu).count()) / 1e3 / rooms};
}

class HandoffBench {
 public:
  HandoffBench(const HandoffOptions& options, const Hooks& hooks, HandoffOutcome& outcome)
      : options_(options), hooks_(hooks), outcome_(outcome) {}

  Status run() {
    for (const std::string& name : options_.transports) {
      const auto engine = parse_engine_name(name);
      if (!engine) return fail(FailureCode::kInvalidArgument, fmt::format("no engine '{}'", name));
      hooks_.progress(fmt::format("starting two engines over {}", name));
      auto pair = start_pair(
          *engine, *std::max_element(options_.concurrency.begin(), options_.concurrency.end()));
      if (!pair) return tl::unexpected(pair.error());
      pairs_.push_back(std::move(*pair));
    }
    start_peer();
    for (const std::uint32_t concurrency : options_.concurrency) {
      if (auto done = run_concurrency(concurrency); !done) return done;
    }
    if (options_.growth_rounds == 0) return {};
    if (auto done = measure_polls(); !done) return done;
    pairs_.clear();
    return measure_growth();
  }

 private:
  Result<std::unique_ptr<HandoffPair>> start_pair(const EngineName& engine, std::uint32_t lanes) {
    HandoffSetup setup;
    setup.without = engine.without;
    engine.transport.copy(setup.transport.data(), setup.transport.size() - 1);
    setup.lanes = lanes;
    setup.pages_per_room = options_.pages_per_room;
    setup.layers = options_.layers;
    setup.item_bytes = options_.item_bytes;
    setup.curve = options_.curve ? 1 : 0;
    auto pair = std::make_unique<HandoffPair>(hooks_);
    if (auto started = pair->start(setup); !started) return tl::unexpected(started.error());
    return pair;
  }

  // A peer that can't start has series without figures, and the transports are measured.
  void start_peer() {
    if (options_.peer.empty()) return;
    hooks_.progress(fmt::format("starting peer {}", options_.peer));
    auto started = PeerProcess::start(options_.peer, options_.peer_command, hooks_.interrupted);
    if (!started) {
      peer_failure_ = started.error().what;
      return;
    }
    peer_ = std::move(*started);
    outcome_.peer_version = peer_->version();
    outcome_.peer_settings = peer_->settings();
  }

  static Content content_of(const std::string& transport) {
    return transport.starts_with(kNullName) ? Content::kNone : Content::kStamp;
  }

  Result<TurnFigures> pair_turn(HandoffPair& pair, const std::string& transport,
                                std::uint32_t concurrency, std::uint64_t rooms) {
    HandoffOrder order;
    order.rooms = rooms;
    order.concurrency = concurrency;
    order.content = content_of(transport);
    auto turn = pair.run(order);
    if (!turn) return tl::unexpected(turn.error());
    if (const std::string fault = fault_of(turn->decode, turn->prefill); !fault.empty()) {
      return fail(FailureCode::kUnspecified,
                  fmt::format("{} at concurrency {}: {}", transport, concurrency, fault));
    }
    return figures_of(*turn);
  }

  Result<TurnFigures> peer_turn(std::uint32_t concurrency, std::uint64_t rooms) {
    auto answer = peer_->ask(fmt::format("rooms {} {}", concurrency, rooms), kPeerPatience,
                             hooks_.interrupted);
    if (!answer) return tl::unexpected(answer.error());
    const router::JsonView root = answer->root();
    const auto rate = root["rooms_per_s"].number();
    if (!rate) {
      return fail(FailureCode::kUnspecified,
                  fmt::format("peer {}: {}", options_.peer,
                              root["error"].text().value_or("an answer without rooms_per_s")));
    }
    return TurnFigures{*rate, root["p50_ms"].number().value_or(0),
                       root["p99_ms"].number().value_or(0), root["cpu_us"].number().value_or(0)};
  }

  Result<TurnFigures> take_turn(std::size_t engine, std::uint32_t concurrency,
                                std::uint64_t rooms) {
    if (hooks_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
    return engine < pairs_.size()
               ? pair_turn(*pairs_[engine], options_.transports[engine], concurrency, rooms)
               : peer_turn(concurrency, rooms);
  }

  // The first turn of each warms up and tells how many rooms a turn takes.
  Status run_concurrency(std::uint32_t concurrency) {
    const std::size_t first = outcome_.series.size();
    for (const std::string& transport : options_.transports) {
      outcome_.series.push_back({transport, concurrency, false, {}, {}});
    }
    if (!options_.peer.empty()) {
      outcome_.series.push_back({options_.peer, concurrency, true, {}, peer_failure_});
    }
    const std::size_t count = outcome_.series.size() - first;
    std::vector<std::uint64_t> rooms(count, 0);
    for (std::uint32_t round = 0; round < kWarmUps + options_.rounds; ++round) {
      const bool warms_up = round < kWarmUps;
      hooks_.progress(warms_up ? fmt::format("concurrency {}: warming up", concurrency)
                               : fmt::format("concurrency {}: round {} of {}", concurrency,
                                             round + 1 - kWarmUps, options_.rounds));
      // Begins with another one each time, so that none always follows the same neighbour.
      for (std::size_t turn = 0; turn < count; ++turn) {
        const std::size_t i = (round + turn) % count;
        RoomSeries& series = outcome_.series[first + i];
        if (!series.failure.empty()) continue;
        const std::uint64_t least = series.is_peer ? kLeastPeerRoomsPerLane : kLeastRoomsPerLane;
        if (round == 0) rooms[i] = rooms_for(0, 0, concurrency, least);
        auto figures = take_turn(i, concurrency, rooms[i]);
        if (!figures && !series.is_peer) return tl::unexpected(figures.error());
        if (!figures) {
          series.failure = figures.error().what;
        } else if (warms_up) {
          rooms[i] = rooms_for(figures->rooms_per_s, options_.seconds, concurrency, least);
        } else {
          series.turns.push_back(*figures);
        }
      }
    }
    return {};
  }

  Status measure_polls() {
    const auto null = std::find(options_.transports.begin(), options_.transports.end(), kNullName);
    if (null == options_.transports.end()) return {};
    hooks_.progress(fmt::format("poll_many over {} rooms", kPolledRooms));
    auto times =
        pairs_[static_cast<std::size_t>(null - options_.transports.begin())]->poll(kPolledRooms);
    if (!times) return tl::unexpected(times.error());
    outcome_.extras.has_polls = true;
    outcome_.extras.poll_p50_us = milliseconds_of(times->p50) * 1e3;
    outcome_.extras.poll_p99_us = milliseconds_of(times->p99) * 1e3;
    return {};
  }

  // As many rooms either way, few or all of them at one time.
  Status measure_growth() {
    const std::string null(kNullName);
    if (std::find(options_.transports.begin(), options_.transports.end(), null) ==
        options_.transports.end()) {
      return {};
    }
    hooks_.progress("growth: starting two engines");
    auto pair = start_pair({null, Without::kNothing}, kManyRooms);
    if (!pair) return tl::unexpected(pair.error());
    for (std::uint32_t round = 0; round <= options_.growth_rounds; ++round) {
      hooks_.progress(fmt::format("growth: round {} of {}", round, options_.growth_rounds));
      std::array<double, 2> rates{};
      for (std::uint32_t turn = 0; turn < rates.size(); ++turn) {
        const std::uint32_t which = (round + turn) % 2;
        if (hooks_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
        auto figures = pair_turn(**pair, null, which == 0 ? kFewRooms : kManyRooms, kManyRooms);
        if (!figures) return tl::unexpected(figures.error());
        rates[which] = figures->rooms_per_s;
      }
      // The first round warms up.
      if (round > 0) outcome_.extras.growth.push_back(rates[0] / rates[1]);
    }
    return {};
  }

  const HandoffOptions& options_;
  const Hooks& hooks_;
  HandoffOutcome& outcome_;
  std::vector<std::unique_ptr<HandoffPair>> pairs_;  // as options_.transports
  std::unique_ptr<PeerProcess> peer_;
  std::string peer_failure_;
};

}  // namespace

std::string fault_of(const SideResult& decode, const SideResult& prefill) {
  for (const SideResult* side : {&decode, &prefill}) {
    if (side->hung > 0 || side->failed > 0) {
      return fmt::format("{} rooms failed and {} did not end, first: {}", side->failed, side->hung,
                         side->first_failure.data());
    }
    if (side->stray_pages > 0) return fmt::format("{} pages came back twice", side->stray_pages);
  }
  if (decode.wrong_items > 0) return fmt::format("{} pages are wrong", decode.wrong_items);
  return {};
}

HandoffOutcome run_handoff_bench(const HandoffOptions& options, const Hooks& hooks) {
  HandoffOutcome outcome;
  HandoffBench bench(options, hooks, outcome);
  if (auto done = bench.run(); !done) outcome.failure = done.error().what;
  return outcome;
}

}  // namespace kvferry::bench
