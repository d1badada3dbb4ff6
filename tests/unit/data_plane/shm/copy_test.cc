#include "data_plane/shm/copy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "base/prng.h"

namespace kvferry::data_plane::shm {
namespace {

constexpr std::byte kUntouched{0xEE};
constexpr std::size_t kMargin = 192;

std::vector<std::byte> noise(std::size_t size, Prng& prng) {
  std::vector<std::byte> out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(prng.next());
  return out;
}

// Copies n bytes between those offsets and says whether they came and nothing else changed.
bool copies_exactly(std::size_t n, std::size_t to_offset, std::size_t from_offset, Prng& prng) {
  const auto source = noise(n + from_offset, prng);
  std::vector<std::byte> target(to_offset + n + kMargin, kUntouched);
  copy_bytes(target.data() + to_offset, source.data() + from_offset, n);
  const auto begin = target.begin() + static_cast<std::ptrdiff_t>(to_offset);
  const auto end = begin + static_cast<std::ptrdiff_t>(n);
  const auto is_untouched = [](std::byte byte) { return byte == kUntouched; };
  return std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from_offset)) &&
         std::all_of(target.begin(), begin, is_untouched) &&
         std::all_of(end, target.end(), is_untouched);
}

TEST(CopyBytes, CopiesEverySizeAroundTheChangeOfKernel) {
  Prng prng(1);
  for (std::size_t n = 0; n < kStreamBytes + 300; ++n) {
    ASSERT_TRUE(copies_exactly(n, kMargin, 0, prng)) << n;
  }
}

TEST(CopyBytes, CopiesAtEveryAlignment) {
  Prng prng(2);
  for (std::size_t to = 0; to < 64; ++to) {
    for (std::size_t from = 0; from < 64; from += 7) {
      ASSERT_TRUE(copies_exactly(kStreamBytes, kMargin + to, from, prng)) << to << " " << from;
      ASSERT_TRUE(copies_exactly(4'096 + to, kMargin + to, from, prng)) << to << " " << from;
    }
  }
}

TEST(CopyBytes, CopiesNothing) {
  copy_bytes(nullptr, nullptr, 0);
  copy_batch({});
}

RC_GTEST_PROP(CopyBatch, CopiesEachPlaceOnce, (std::uint64_t seed)) {
  Prng prng(seed);
  const std::size_t pool_bytes = 256U << 10;
  const auto source = noise(pool_bytes, prng);
  std::vector<std::byte> target(pool_bytes, kUntouched);
  std::vector<std::byte> expected = target;
  std::vector<Copy> copies;
  for (std::size_t at = prng.below(100); at < pool_bytes;) {
    const std::size_t most = prng.below(3) == 0 ? 40'000 : 3'000;
    const std::size_t n = std::min<std::size_t>(prng.below(most), pool_bytes - at);
    const std::size_t from = prng.below(pool_bytes - n + 1);
    copies.push_back({target.data() + at, source.data() + from, n});
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), n,
                expected.begin() + static_cast<std::ptrdiff_t>(at));
    at += n + 1 + prng.below(100);
  }
  copy_batch(copies);
  RC_ASSERT(target == expected);
}

}  // namespace
}  // namespace kvferry::data_plane::shm
