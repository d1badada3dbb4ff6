// Coverage against a dumb version: one byte of a map for each byte of each item.
#include "layout/coverage.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/prng.h"

namespace kvferry::layout {
namespace {

constexpr std::uint32_t kRegions = 5;
constexpr std::uint32_t kItems = 8;
constexpr std::uint64_t kItemBytes = 48;

enum class Byte : std::uint8_t { kForeign, kFree, kLanded };

struct Bitmap {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Byte>> items;

  void allow(const ItemSlice& slice, std::uint32_t item) {
    auto& bytes = items[{slice.target_region.value(), item}];
    bytes.resize(kItemBytes);
    for (std::uint32_t piece = 0; piece < slice.piece_count; ++piece) {
      for (std::uint64_t i = 0; i < slice.piece_bytes; ++i) {
        bytes[slice.offset + piece * slice.stride + i] = Byte::kFree;
      }
    }
  }
  bool contains(std::uint32_t region, std::uint32_t item, std::uint64_t offset,
                std::uint64_t length) const {
    const auto found = items.find({region, item});
    if (found == items.end() || length == 0) {
      return false;
    }
    for (std::uint64_t i = offset; i < offset + length; ++i) {
      if (i >= kItemBytes || found->second[i] == Byte::kForeign) {
        return false;
      }
    }
    return true;
  }
  CoverageSet::Add add(std::uint32_t region, std::uint32_t item, std::uint64_t offset,
                       std::uint64_t length) {
    if (!contains(region, item, offset, length)) {
      return CoverageSet::Add::kOutside;
    }
    auto& bytes = items[{region, item}];
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto end = begin + static_cast<std::ptrdiff_t>(length);
    if (std::find(begin, end, Byte::kLanded) != end) {
      return CoverageSet::Add::kOverlap;
    }
    std::fill(begin, end, Byte::kLanded);
    return CoverageSet::Add::kAdded;
  }
  std::uint64_t count(Byte kind) const {
    std::uint64_t sum = 0;
    for (const auto& [key, bytes] : items) {
      sum += static_cast<std::uint64_t>(std::count(bytes.begin(), bytes.end(), kind));
    }
    return sum;
  }
};

struct World {
  GrantExtent extent;
  Bitmap bitmap;
};

// Pages in regions 0 and 1 (whole or strided), aux in 2, state in 3; nothing in 4.
World random_world(Prng& prng) {
  const auto slice = [&](std::uint32_t region) {
    switch (prng.below(4)) {
      case 0:
        return ItemSlice{RegionId(region), 0, kItemBytes, 1, 0};
      case 1:
        return ItemSlice{RegionId(region), 4, 8, 4, 12};
      case 2:
        return ItemSlice{RegionId(region), 0, 12, 4, 12};
      default:
        return ItemSlice{RegionId(region), prng.below(10), 1 + prng.below(30), 1, 0};
    }
  };
  std::vector<ItemSlice> page_slices{slice(1), slice(0)};
  if (prng.below(2) == 0) {
    // Two slices of one region, interleaved.
    page_slices = {{RegionId(1), 0, 4, 4, 12}, {RegionId(1), 4, 4, 4, 12}, slice(0)};
  }
  std::vector<PageIndex> pages;
  for (std::uint32_t item = 0; item < kItems; ++item) {
    if (prng.below(3) > 0) {
      pages.insert(pages.begin() + static_cast<std::ptrdiff_t>(prng.below(pages.size() + 1)),
                   PageIndex(item));
    }
  }
  const std::vector<ItemSlice> aux_slices{slice(2)};
  const std::int64_t aux_slot = static_cast<std::int64_t>(prng.below(kItems + 1)) - 1;
  const std::vector<ItemSlice> state_slices{slice(3)};
  std::vector<std::uint32_t> state_slots;
  if (prng.below(2) == 0) {
    state_slots = {5, 1};
  }
  World world{GrantExtent(page_slices, pages, aux_slices, aux_slot, state_slices, state_slots), {}};
  for (const ItemSlice& page_slice : page_slices) {
    for (const PageIndex page : pages) {
      world.bitmap.allow(page_slice, page.value());
    }
  }
  if (aux_slot >= 0) {
    world.bitmap.allow(aux_slices[0], static_cast<std::uint32_t>(aux_slot));
  }
  for (const std::uint32_t slot : state_slots) {
    world.bitmap.allow(state_slices[0], slot);
  }
  return world;
}

RC_GTEST_PROP(Coverage, AgreesWithAByteMap, (std::uint64_t seed)) {
  Prng prng(seed);
  World world = random_world(prng);
  CoverageSet coverage(world.extent);
  RC_ASSERT(world.extent.total_bytes() == world.bitmap.count(Byte::kFree));
  GrantExtent::LastPlace last;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> places;  // by region and item
  std::set<std::uint64_t> used_places;
  const std::uint64_t longest = 1 + prng.below(prng.below(2) == 0 ? 4 : kItemBytes + 4);
  for (int i = 0; i < 2'000; ++i) {
    const auto region = static_cast<std::uint32_t>(prng.below(kRegions));
    const auto item = static_cast<std::uint32_t>(prng.below(kItems + 1));
    const std::uint64_t offset = prng.below(kItemBytes + 2);
    const std::uint64_t length = prng.below(8) == 0 ? kItemBytes : prng.below(longest + 1);
    RC_ASSERT(world.extent.contains(RegionId(region), item, offset, length) ==
              world.bitmap.contains(region, item, offset, length));
    const auto place = world.extent.place_of(RegionId(region), item, offset, length, last);
    RC_ASSERT(place.has_value() == world.bitmap.contains(region, item, offset, length));
    if (place) {
      RC_ASSERT(*place < world.extent.place_count());
      const auto [known, is_new] = places.try_emplace({region, item}, *place);
      RC_ASSERT(known->second == *place);
      RC_ASSERT(!is_new || used_places.insert(*place).second);
    }
    RC_ASSERT(coverage.add(RegionId(region), item, offset, length) ==
              world.bitmap.add(region, item, offset, length));
    RC_ASSERT(coverage.covered_bytes() == world.bitmap.count(Byte::kLanded));
    RC_ASSERT(coverage.is_full() == (world.bitmap.count(Byte::kFree) == 0));
  }
}

GrantExtent simple_extent(std::vector<PageIndex> pages) {
  return GrantExtent({{RegionId(0), 0, 16, 1, 0}}, std::move(pages), {}, -1, {}, {});
}

TEST(GrantExtent, OverflowIsOutside) {
  const GrantExtent extent = simple_extent({PageIndex(0xFFFF'FFFF), PageIndex(0)});
  EXPECT_TRUE(extent.contains(RegionId(0), 0xFFFF'FFFF, 0, 16));
  EXPECT_TRUE(extent.contains(RegionId(0), 0, 15, 1));
  EXPECT_FALSE(extent.contains(RegionId(0), 0, 16, 1));
  EXPECT_FALSE(extent.contains(RegionId(0), 0, 8, ~std::uint64_t{0}));
  EXPECT_FALSE(extent.contains(RegionId(0), 0, ~std::uint64_t{0}, 8));
  EXPECT_FALSE(extent.contains(RegionId(0), 0, ~std::uint64_t{0}, 1));
  EXPECT_FALSE(extent.contains(RegionId(0), 1, 0, 1));
  EXPECT_FALSE(extent.contains(RegionId(1), 0, 0, 1));
}

TEST(GrantExtent, NothingGrantedIsCoveredAtOnceAndAllowsNothing) {
  const GrantExtent extent;
  EXPECT_TRUE(CoverageSet(extent).is_full());
  EXPECT_FALSE(extent.contains(RegionId(0), 0, 0, 1));
}

TEST(GrantExtent, KeepsItsPageListAndIgnoresSlicesOfNothing) {
  const std::vector<PageIndex> pages{PageIndex(4), PageIndex(2)};
  const GrantExtent extent({{RegionId(0), 0, 0, 4, 0}, {RegionId(1), 8, 2, 2, 4}}, pages, {}, -1,
                           {}, {});
  EXPECT_TRUE(std::ranges::equal(extent.pages(), pages));
  EXPECT_EQ(extent.total_bytes(), 8U);
  EXPECT_EQ(extent.total_writes_bound(), 4U);
  EXPECT_FALSE(extent.contains(RegionId(0), 4, 0, 1));
  EXPECT_TRUE(extent.contains(RegionId(1), 4, 12, 2));
}

TEST(Coverage, APageListedTwiceIsNeverCovered) {
  const GrantExtent extent = simple_extent({PageIndex(3), PageIndex(3)});
  CoverageSet coverage(extent);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 0, 16), CoverageSet::Add::kAdded);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 0, 16), CoverageSet::Add::kOverlap);
  EXPECT_FALSE(coverage.is_full());
}

TEST(Coverage, AnOverlapAddsNothing) {
  const GrantExtent extent = simple_extent({PageIndex(3)});
  CoverageSet coverage(extent);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 4, 4), CoverageSet::Add::kAdded);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 0, 16), CoverageSet::Add::kOverlap);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 0, 5), CoverageSet::Add::kOverlap);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 0, 4), CoverageSet::Add::kAdded);
  EXPECT_EQ(coverage.covered_bytes(), 8U);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 8, 8), CoverageSet::Add::kAdded);
  EXPECT_TRUE(coverage.is_full());
}

TEST(Coverage, AfterCoverAllEveryLandingIsAnOverlap) {
  const GrantExtent extent = simple_extent({PageIndex(3), PageIndex(4)});
  CoverageSet coverage(extent);
  EXPECT_EQ(coverage.add(RegionId(0), 3, 0, 4), CoverageSet::Add::kAdded);
  coverage.cover_all();
  EXPECT_EQ(coverage.add(RegionId(0), 4, 0, 16), CoverageSet::Add::kOverlap);
  EXPECT_EQ(coverage.add(RegionId(0), 5, 0, 16), CoverageSet::Add::kOutside);
  EXPECT_TRUE(coverage.is_full());
}

TEST(Coverage, LongScatteredListsAreFoundByItem) {
  std::vector<PageIndex> pages;
  for (std::uint32_t i = 0; i < 10'000; ++i) {
    pages.emplace_back((i * 7'919U) % 10'007U);
  }
  const GrantExtent extent = simple_extent(pages);
  CoverageSet coverage(extent);
  for (const PageIndex page : pages) {
    ASSERT_EQ(coverage.add(RegionId(0), page.value(), 0, 16), CoverageSet::Add::kAdded);
  }
  EXPECT_TRUE(coverage.is_full());
}

}  // namespace
}  // namespace kvferry::layout
