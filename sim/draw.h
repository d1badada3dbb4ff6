// Draws from distributions, in whole numbers only: equal on every machine, whatever its libm.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/instant.h"
#include "base/prng.h"

namespace kvferry::sim {

// Binary logarithm in 1/65536, straight between powers of two; value > 0.
constexpr std::uint64_t fixed_log2(std::uint64_t value) {
  const auto whole = static_cast<std::uint64_t>(std::bit_width(value) - 1);
  return (whole << 16) + ((value << 16 >> whole) - (1ULL << 16));
}
constexpr std::uint64_t fixed_exp2(std::uint64_t logarithm) {
  return ((1ULL << 16) + (logarithm & 0xFFFF)) << (logarithm >> 16) >> 16;
}

constexpr bool percent(Prng& prng, std::uint32_t chance) { return prng.below(100) < chance; }

// In [low, high].
constexpr std::uint64_t uniform(Prng& prng, std::uint64_t low, std::uint64_t high) {
  return low + prng.below(high - low + 1);
}
// In [low, high], each power of two as likely as the next; 0 < low, high < 2^40.
constexpr std::uint64_t log_uniform(Prng& prng, std::uint64_t low, std::uint64_t high) {
  const std::uint64_t from = fixed_log2(low);
  const std::uint64_t span = fixed_log2(high + 1) - from;
  return std::clamp(fixed_exp2(from + prng.below(span)), low, high);
}
constexpr Duration log_uniform(Prng& prng, Duration low, Duration high) {
  return Duration(static_cast<std::int64_t>(log_uniform(
      prng, static_cast<std::uint64_t>(low.count()), static_cast<std::uint64_t>(high.count()))));
}
constexpr Duration uniform(Prng& prng, Duration low, Duration high) {
  return Duration(static_cast<std::int64_t>(uniform(prng, static_cast<std::uint64_t>(low.count()),
                                                    static_cast<std::uint64_t>(high.count()))));
}
// Of this mean; at most eleven times as long.
constexpr Duration exponential(Prng& prng, Duration mean) {
  constexpr std::uint64_t kLn2 = 45'426;  // in 1/65536
  const std::uint64_t below_one = uniform(prng, 1, 1ULL << 16);
  const std::uint64_t minus_ln = ((16ULL << 16) - fixed_log2(below_one)) * kLn2 >> 16;
  return Duration(
      static_cast<std::int64_t>(static_cast<std::uint64_t>(mean.count()) * minus_ln >> 16));
}

}  // namespace kvferry::sim
