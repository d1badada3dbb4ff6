// Small deterministic generator (SplitMix64) for jitter, slots of tests and the simulator. Not for
// secrets: those come from base/crypto.h.
#pragma once

#include <cstdint>
#include <span>

namespace kvferry {

class Prng {
 public:
  explicit constexpr Prng(std::uint64_t seed) : state_(seed) {}

  constexpr std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound); bound > 0.
  constexpr std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // One draw for each byte.
  constexpr void fill(std::span<std::uint8_t> out) {
    for (std::uint8_t& byte : out) {
      byte = static_cast<std::uint8_t>(next());
    }
  }
  // A generator whose draws do not depend on how often this one is used afterwards.
  constexpr Prng fork() { return Prng(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace kvferry
