#include "bench/transfer/pattern.h"

#include <cstring>

#include "base/prng.h"

namespace kvferry::bench {
namespace {

std::uint64_t word_at(std::uint64_t pool_offset) { return Prng(pool_offset).next(); }

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint64_t pool_offset) {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size();
       at += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(pool_offset + at);
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
}

bool holds_pattern(std::span<const std::byte> bytes, std::uint64_t pool_offset) {
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes.size();
       at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (word != word_at(pool_offset + at)) return false;
  }
  return true;
}

}  // namespace kvferry::bench
