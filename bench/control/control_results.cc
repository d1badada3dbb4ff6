#include <fmt/format.h>

#include <algorithm>

#include "bench/control/control_bench.h"
#include "bench/control/control_end.h"
#include "bench/transfer/results.h"

namespace kvferry::bench {
namespace {

std::vector<double> column(const ControlSeries& series, double ControlTurn::*field) {
  std::vector<double> values;
  for (const ControlTurn& turn : series.turns) values.push_back(turn.*field);
  return values;
}

// 0 without such a reference.
double ratio_to(const std::vector<ControlSeries>& all, const ControlSeries& series,
                std::string_view engine) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const ControlSeries& other) {
    return other.engine == engine && other.bytes == series.bytes && other.window == series.window;
  });
  if (found == all.end()) return 0;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(series.turns.size(), found->turns.size()); ++i) {
    const double reference = found->turns[i].messages_per_s;
    if (reference > 0) ratios.push_back(series.turns[i].messages_per_s / reference);
  }
  return median(std::move(ratios));
}

}  // namespace

std::vector<ControlRow> make_control_rows(const std::vector<ControlSeries>& all) {
  std::vector<ControlRow> rows;
  for (const ControlSeries& series : all) {
    ControlRow row;
    row.engine = series.engine;
    row.bytes = series.bytes;
    row.window = series.window;
    row.rounds = series.turns.size();
    const std::vector<double> rates = column(series, &ControlTurn::messages_per_s);
    row.median = {median(rates), median(column(series, &ControlTurn::p50_us)),
                  median(column(series, &ControlTurn::p99_us)),
                  median(column(series, &ControlTurn::cpu_us))};
    if (!rates.empty()) {
      const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
      row.min_messages_per_s = *least;
      row.max_messages_per_s = *most;
    }
    row.ratio_to_plain = ratio_to(all, series, kPlainName);
    row.ratio_to_curve = ratio_to(all, series, kPlainCurveName);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Figure> judge_control(const std::vector<ControlRow>& rows) {
  std::vector<Figure> goals;
  for (const ControlRow& row : rows) {
    if (row.engine != kLinkName) continue;
    if (row.window > 1 && row.bytes < kJoinedBytes) continue;
    goals.push_back({row.engine,
                     fmt::format("{} bytes, {} under way: messages by those of {}", row.bytes,
                                 row.window, kPlainCurveName),
                     row.ratio_to_curve, "", fmt::format("at least {}", kLeastOfCurve),
                     row.ratio_to_curve >= kLeastOfCurve});
  }
  return goals;
}

}  // namespace kvferry::bench
