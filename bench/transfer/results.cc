#include "bench/transfer/results.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/transfer/block.h"
#include "bench/transfer/engine.h"

namespace kvferry::bench {
namespace {

const Series* find(const std::vector<Series>& all, std::string_view engine,
                   std::string_view block) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Series& series) {
    return series.engine == engine && series.block == block;
  });
  return found == all.end() ? nullptr : &*found;
}

bool is_reference(std::string_view engine) {
  return engine == kMemcpyName || engine == kStreamName;
}

// Small pages pay for each page's own bookkeeping.
double least_ratio(const Series& series) {
  if (series.engine == "shm" && (series.block == "64K" || series.block == "1M")) return 0.95;
  return 0.90;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double ratio_of(const Series& series, const Series& reference) {
  std::vector<double> ratios;
  const std::size_t rounds = std::min(series.gbps.size(), reference.gbps.size());
  for (std::size_t i = 0; i < rounds; ++i) {
    if (reference.gbps[i] > 0) ratios.push_back(series.gbps[i] / reference.gbps[i]);
  }
  return median(std::move(ratios));
}

std::string_view reference_of(std::string_view engine) {
  if (engine.ends_with(kDigestsSuffix)) {
    return engine.substr(0, engine.size() - kDigestsSuffix.size());
  }
  return engine == "shm" || engine == kMemcpyName ? kMemcpyName : kStreamName;
}

std::vector<Row> make_rows(const std::vector<Series>& all) {
  std::vector<Row> rows;
  for (const Series& series : all) {
    Row row;
    row.engine = series.engine;
    row.block = series.block;
    row.is_peer = series.is_peer;
    row.failure = series.failure;
    row.rounds = series.gbps.size();
    row.gbps = median(series.gbps);
    if (!series.gbps.empty()) {
      const auto [least, most] = std::minmax_element(series.gbps.begin(), series.gbps.end());
      row.min_gbps = *least;
      row.max_gbps = *most;
    }
    const Series* reference = find(all, reference_of(series.engine), series.block);
    if (reference != nullptr) {
      row.reference = reference->engine;
      row.ratio = ratio_of(series, *reference);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Goal> check_goals(const std::vector<Series>& all) {
  std::vector<Goal> goals;
  for (const Series& series : all) {
    if (series.is_peer || is_reference(series.engine)) continue;
    if (series.engine.ends_with(kDigestsSuffix)) continue;
    const std::string_view name = reference_of(series.engine);
    const Series* reference = find(all, name, series.block);
    const double least = least_ratio(series);
    const double ratio = reference == nullptr ? 0 : ratio_of(series, *reference);
    goals.push_back(
        {fmt::format("{} at {}: at least {:.2f} of {}", series.engine, series.block, least, name),
         ratio, ratio >= least});
    for (const Series& peer : all) {
      if (!peer.is_peer || peer.block != series.block) continue;
      const double lead = ratio_of(series, peer);
      goals.push_back(
          {fmt::format("{} at {}: ahead of {}", series.engine, series.block, peer.engine), lead,
           lead > 1 && peer.failure.empty()});
    }
  }
  return goals;
}

}  // namespace kvferry::bench
