#include "bench/handoff/handoff_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/handoff/room_plan.h"
#include "bench/transfer/results.h"

namespace kvferry::bench {
namespace {

constexpr double kLeastRatio = 30;
constexpr double kMostPollUs = 100;
constexpr double kMostGrowth = 1.3;
struct LatencyGoal {
  std::uint32_t concurrency;
  double p99_ms;
};
constexpr std::array kLatencyGoals = {LatencyGoal{256, 5}, LatencyGoal{8'192, 150}};

template <typename Field>
std::vector<double> column(const RoomSeries& series, Field field) {
  std::vector<double> values;
  for (const TurnFigures& turn : series.turns) values.push_back(turn.*field);
  return values;
}

const RoomSeries* find_peer(const std::vector<RoomSeries>& all, std::uint32_t concurrency) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const RoomSeries& series) {
    return series.is_peer && series.concurrency == concurrency;
  });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

double rate_ratio(const RoomSeries& series, const RoomSeries& reference) {
  std::vector<double> ratios;
  const std::size_t rounds = std::min(series.turns.size(), reference.turns.size());
  for (std::size_t i = 0; i < rounds; ++i) {
    if (reference.turns[i].rooms_per_s > 0) {
      ratios.push_back(series.turns[i].rooms_per_s / reference.turns[i].rooms_per_s);
    }
  }
  return median(std::move(ratios));
}

std::vector<RoomRow> make_room_rows(const std::vector<RoomSeries>& all) {
  std::vector<RoomRow> rows;
  for (const RoomSeries& series : all) {
    RoomRow row;
    row.engine = series.engine;
    row.concurrency = series.concurrency;
    row.is_peer = series.is_peer;
    row.rounds = series.turns.size();
    row.failure = series.failure;
    const std::vector<double> rates = column(series, &TurnFigures::rooms_per_s);
    row.median = {median(rates), median(column(series, &TurnFigures::p50_ms)),
                  median(column(series, &TurnFigures::p99_ms)),
                  median(column(series, &TurnFigures::cpu_us))};
    if (!rates.empty()) {
      const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
      row.min_rooms_per_s = *least;
      row.max_rooms_per_s = *most;
    }
    const RoomSeries* peer = find_peer(all, series.concurrency);
    if (peer != nullptr) row.ratio_to_peer = rate_ratio(series, *peer);
    rows.push_back(std::move(row));
  }
  return rows;
}

RoomVerdict judge_rooms(const std::vector<RoomSeries>& all, const RoomExtras& extras) {
  RoomVerdict verdict;
  for (const LatencyGoal& goal : kLatencyGoals) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const RoomSeries& series) {
      return series.engine == kNullName && series.concurrency == goal.concurrency;
    });
    if (found == all.end()) {
      verdict.not_judged.push_back(
          fmt::format("rooms at concurrency {}: not measured", goal.concurrency));
      continue;
    }
    const double p99 = median(column(*found, &TurnFigures::p99_ms));
    verdict.goals.push_back({std::string(kNullName),
                             fmt::format("p99 of a room at concurrency {}", goal.concurrency), p99,
                             "ms", fmt::format("at most {} ms", goal.p99_ms),
                             !found->turns.empty() && p99 <= goal.p99_ms});
    const RoomSeries* peer = find_peer(all, goal.concurrency);
    if (peer == nullptr) {
      verdict.not_judged.push_back(fmt::format(
          "rate at concurrency {} against a peer: no --peer was given", goal.concurrency));
      continue;
    }
    const double ratio = rate_ratio(*found, *peer);
    verdict.goals.push_back(
        {std::string(kNullName),
         fmt::format("rate at concurrency {} by that of {}", goal.concurrency, peer->engine), ratio,
         "", fmt::format("at least {}", kLeastRatio),
         ratio >= kLeastRatio && peer->failure.empty()});
    if (verdict.ratio_to_peer == 0 || ratio < verdict.ratio_to_peer) verdict.ratio_to_peer = ratio;
  }
  if (extras.has_polls) {
    verdict.goals.push_back({std::string(kNullName),
                             fmt::format("p99 of poll_many over {} rooms", kPolledRooms),
                             extras.poll_p99_us, "us", fmt::format("at most {} us", kMostPollUs),
                             extras.poll_p99_us <= kMostPollUs});
  } else {
    verdict.not_judged.emplace_back("poll_many: not measured");
  }
  if (!extras.growth.empty()) {
    const double growth = median(extras.growth);
    verdict.goals.push_back(
        {std::string(kNullName),
         fmt::format("time of a room among {} by that among {}", kManyRooms, kFewRooms), growth, "",
         fmt::format("at most {}", kMostGrowth), growth <= kMostGrowth});
  } else {
    verdict.not_judged.emplace_back("growth: not measured");
  }
  return verdict;
}

}  // namespace kvferry::bench
