// Seeds as people and CI give them, and the sequence that follows from one.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/prng.h"
#include "kvferry/status.h"

namespace kvferry::lab {

// A number counts on (S, S+1, ...), so that a long search can go on where it stopped. From a
// commit's hash the seeds are mixed instead: each commit gets seeds of its own, none of its
// neighbour's.
class SeedSequence {
 public:
  constexpr explicit SeedSequence(std::uint64_t first, bool mixed = false)
      : first_(first), mixed_(mixed) {}

  constexpr std::uint64_t at(std::uint64_t index) const {
    const std::uint64_t seed = first_ + index;
    // Unmixed at the start, so that --seed HASH and the first seed of --from HASH are the same.
    return mixed_ && index > 0 ? Prng(first_ + index * 0x9E3779B97F4A7C15ULL).next() : seed;
  }
  constexpr std::uint64_t first() const { return at(0); }

 private:
  std::uint64_t first_;
  bool mixed_;
};

// Decimal, 0x and hex, or a commit's hash (7 to 40 hex digits, of which the first 16 count). What
// is both a decimal number and a hash is a number.
Result<SeedSequence> parse_seeds(std::string_view text);

}  // namespace kvferry::lab
