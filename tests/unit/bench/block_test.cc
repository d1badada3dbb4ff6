// The plan that both workers make, and the pattern by which a copy is told from any other.
#include "bench/transfer/block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "bench/transfer/pattern.h"

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kPoolBytes = 1ULL << 30;

TEST(Block, SizesCoverThePoolExactly) {
  for (const std::uint64_t pool_bytes : {kPoolBytes, kPoolBytes / 32}) {
    for (const char* name : {"4K", "64K", "1M", "kv-mix"}) {
      const auto block = make_block(name, pool_bytes);
      ASSERT_TRUE(block) << name;
      EXPECT_EQ(block->page_bytes * block->flat_count(), pool_bytes) << name;
      EXPECT_EQ(block->grant_count() * block->pages_per_grant, block->page_count) << name;
      // Open grants never hold all pages, so that a next one is always at hand.
      EXPECT_LT(block->grants_in_flight, block->grant_count()) << name;
    }
  }
}

TEST(Block, TheMixIsThirtyTwoLayersOfKAndVAndAnAuxRecord) {
  const auto block = make_block("kv-mix", kPoolBytes);
  ASSERT_TRUE(block);
  const auto regions = regions_of(*block, nullptr, kPoolBytes, 7);
  ASSERT_EQ(regions.size(), 65U);
  EXPECT_EQ(regions[0].item_bytes, 32U << 10);
  EXPECT_EQ(regions[63].memory_fd_offset + regions[63].item_bytes * regions[63].item_count,
            kPoolBytes);
  EXPECT_EQ(regions[64].kind, RegionKind::kAux);
  EXPECT_EQ(regions[64].memory_fd_offset, kPoolBytes);
  EXPECT_EQ(block->grant_bytes(), 64U * 4 * (32U << 10) + kAuxRecordBytes);
}

TEST(Block, NamesThatAreNoBlockAreRefused) {
  for (const char* name : {"", "K", "3K", "256", "64k", "64M", "1G", "-4K", "mix"}) {
    EXPECT_FALSE(make_block(name, kPoolBytes)) << name;
  }
  EXPECT_FALSE(make_block("4K", kPoolBytes - 1));
  EXPECT_FALSE(make_block("4K", 16U << 20));
}

TEST(Block, EachSaltReadsEverySourcePageOnce) {
  constexpr std::uint32_t kCount = 256;
  for (const std::uint32_t salt : {0U, 1U, 77U}) {
    std::vector<bool> read(kCount);
    for (std::uint32_t page = 0; page < kCount; ++page) {
      read[source_page(page, salt, kCount)] = true;
    }
    EXPECT_EQ(std::count(read.begin(), read.end(), true), kCount) << salt;
  }
  EXPECT_NE(source_page(5, 1, kCount), source_page(5, 2, kCount));
}

TEST(Block, TheScatteredOrderHasEachPageOnceAndIsNotSequential) {
  auto order = scattered_order(1024);
  std::size_t neighbours = 0;
  for (std::size_t i = 1; i < order.size(); ++i) neighbours += order[i] == order[i - 1] + 1 ? 1 : 0;
  EXPECT_LT(neighbours, 16U);
  std::sort(order.begin(), order.end());
  for (std::uint32_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], i);
}

TEST(Pattern, ShowsTheWrongPlaceAndASingleWrongByte) {
  std::array<std::byte, 4096> page{};
  fill_pattern(page, 8192);
  EXPECT_TRUE(holds_pattern(page, 8192));
  EXPECT_FALSE(holds_pattern(page, 4096));
  page[4000] ^= std::byte{1};
  EXPECT_FALSE(holds_pattern(page, 8192));
}

}  // namespace
}  // namespace kvferry::bench
