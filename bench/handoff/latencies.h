// Times of many rooms or calls, and their quantiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/instant.h"

namespace kvferry::bench {

class Latencies {
 public:
  void reserve(std::size_t count) { times_.reserve(count); }
  void add(Duration time) { times_.push_back(time.count()); }
  std::size_t count() const { return times_.size(); }
  // The least time that at least this share of all do not exceed; 0 without any.
  Duration quantile(double share) {
    if (times_.empty()) return Duration::zero();
    const auto rank = static_cast<std::size_t>(share * static_cast<double>(times_.size()));
    const auto at = times_.begin() + static_cast<std::ptrdiff_t>(std::min(rank, times_.size() - 1));
    std::nth_element(times_.begin(), at, times_.end());
    return Duration(*at);
  }
  Duration max() const {
    return times_.empty() ? Duration::zero()
                          : Duration(*std::max_element(times_.begin(), times_.end()));
  }

 private:
  std::vector<std::int64_t> times_;
};

}  // namespace kvferry::bench
