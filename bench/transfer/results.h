// From figures by round to what is printed: medians, ranges, ratios to the reference of the same
// round, and the goals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvferry::bench {

// One engine with one block, one figure for each round.
struct Series {
  std::string engine;
  std::string block;
  bool is_peer = false;
  std::vector<double> gbps;
  std::string failure;  // why there are no (further) figures
};

struct Row {
  std::string engine;
  std::string block;
  bool is_peer = false;
  double gbps = 0;  // median
  double min_gbps = 0;
  double max_gbps = 0;
  std::string reference;  // empty: none was measured
  double ratio = 0;       // median of the rounds' ratios to the reference
  std::size_t rounds = 0;
  std::string failure;
};

// 0 for none.
double median(std::vector<double> values);
// Median of the ratios of rounds that both have; 0 when there is none.
double ratio_of(const Series& series, const Series& reference);

// The reference of an engine: memcpy for shm, the raw stream for all that use sockets, and the
// transport without digests for one with them.
std::string_view reference_of(std::string_view engine);
std::vector<Row> make_rows(const std::vector<Series>& all);

struct Goal {
  std::string what;  // "shm at 64K: at least 0.95 of memcpy"
  double ratio = 0;
  bool is_met = false;
};
// What --check asks of the figures at hand. An engine without its reference has missed its goal.
// What digests cost is shown and not judged.
std::vector<Goal> check_goals(const std::vector<Series>& all);

// A plain bar chart of the medians, by block, with the ranges as lines.
std::string to_svg(const std::vector<Row>& rows, std::string_view title);

}  // namespace kvferry::bench
