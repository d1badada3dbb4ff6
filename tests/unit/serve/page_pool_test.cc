#include "serve/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvferry::serve {
namespace {

EngineInfo shape() {
  EngineInfo info;
  info.layers = 2;
  info.kv_heads = 2;
  info.head_dim = 4;
  info.page_size_tokens = 8;
  return info;
}

TEST(PagePool, LaysOutKeysThenValuesThenAux) {
  auto pool = PagePool::create(shape(), 4, 3).value();
  const auto& regions = pool->regions();
  ASSERT_EQ(regions.size(), 5U);
  EXPECT_EQ(regions[0].kind, RegionKind::kKey);
  EXPECT_EQ(regions[1].layer, 1U);
  EXPECT_EQ(regions[2].kind, RegionKind::kValue);
  EXPECT_EQ(regions[4].kind, RegionKind::kAux);
  EXPECT_EQ(regions[0].item_bytes, 8U * 2 * 4 * 2);
  EXPECT_EQ(regions[4].item_bytes, kAuxRecordBytes);
  EXPECT_EQ(regions[4].item_count, 3U);
  for (const auto& region : regions) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(region.base) % 4096, 0U);
    std::memset(region.base, 1, region.item_bytes * region.item_count);
  }
  const auto page = pool->page(PageIndex(3));
  ASSERT_EQ(page.size(), 4U);
  EXPECT_EQ(page[2], regions[2].base + 3 * regions[2].item_bytes);
}

TEST(PagePool, GivesTheLowestFreePages) {
  auto pool = PagePool::create(shape(), 6, 1).value();
  const auto first = pool->take_pages(4).value();
  EXPECT_EQ(first,
            (std::vector<PageIndex>{PageIndex(0), PageIndex(1), PageIndex(2), PageIndex(3)}));
  pool->give_back(std::vector<PageIndex>{PageIndex(2), PageIndex(0)});
  EXPECT_EQ(pool->take_pages(3).value(),
            (std::vector<PageIndex>{PageIndex(0), PageIndex(2), PageIndex(4)}));
  EXPECT_FALSE(pool->take_pages(2));
  EXPECT_EQ(pool->free_pages(), 1U);
  EXPECT_EQ(pool->taken_total(), 7U);
  EXPECT_EQ(pool->returned_total(), 2U);
}

TEST(PagePool, RefusesAPageThatNobodyHas) {
  auto pool = PagePool::create(shape(), 2, 2).value();
  const auto pages = pool->take_pages(1).value();
  pool->give_back(pages);
  pool->give_back(pages);
  pool->give_back(std::vector<PageIndex>{PageIndex(9)});
  EXPECT_EQ(pool->double_returns(), 2U);
  EXPECT_EQ(pool->free_pages(), 2U);
  EXPECT_EQ(pool->take_aux(), 0U);
  EXPECT_EQ(pool->take_aux(), 1U);
  EXPECT_FALSE(pool->take_aux());
  pool->give_back_aux(1);
  pool->give_back_aux(1);
  EXPECT_EQ(pool->double_returns(), 3U);
  EXPECT_EQ(pool->free_aux(), 1U);
}

TEST(PagePool, CountsPagesOfAPrompt) {
  auto pool = PagePool::create(shape(), 2, 1).value();
  EXPECT_EQ(pool->pages_for(1), 1U);
  EXPECT_EQ(pool->pages_for(8), 1U);
  EXPECT_EQ(pool->pages_for(9), 2U);
}

}  // namespace
}  // namespace kvferry::serve
