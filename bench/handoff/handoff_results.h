// From turns to what is printed: medians over the rounds, ratios of turns of one round, goals.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/transfer/case_bench.h"

namespace kvferry::bench {

// One turn of one engine.
struct TurnFigures {
  double rooms_per_s = 0;
  double p50_ms = 0;
  double p99_ms = 0;
  double cpu_us = 0;  // of both processes, for each room
};

// One engine at one concurrency, one entry for each round.
struct RoomSeries {
  std::string engine;
  std::uint32_t concurrency = 0;
  bool is_peer = false;
  std::vector<TurnFigures> turns;
  std::string failure;  // why there are no (further) figures
};

struct RoomRow {
  std::string engine;
  std::uint32_t concurrency = 0;
  bool is_peer = false;
  TurnFigures median;
  double min_rooms_per_s = 0;
  double max_rooms_per_s = 0;
  double ratio_to_peer = 0;  // median of the rounds' ratios; 0 without a peer
  std::size_t rounds = 0;
  std::string failure;
};

std::vector<RoomRow> make_room_rows(const std::vector<RoomSeries>& all);
// Median of the ratios of the rounds that both have; 0 when there is none.
double rate_ratio(const RoomSeries& series, const RoomSeries& reference);

// Besides the rooms.
struct RoomExtras {
  bool has_polls = false;
  double poll_p50_us = 0;  // of poll_many over kPolledRooms rooms
  double poll_p99_us = 0;
  std::vector<double> growth;  // time of a room among kManyRooms by that among kFewRooms, by round
};
inline constexpr std::uint32_t kPolledRooms = 8'192;
inline constexpr std::uint32_t kFewRooms = 1'000;
inline constexpr std::uint32_t kManyRooms = 100'000;

// What --check asks of the null transport's figures at hand, and what it can't judge.
struct RoomVerdict {
  std::vector<Figure> goals;
  std::vector<std::string> not_judged;
  double ratio_to_peer = 0;  // the least of the judged ratios; 0: none
};
RoomVerdict judge_rooms(const std::vector<RoomSeries>& all, const RoomExtras& extras);

}  // namespace kvferry::bench
