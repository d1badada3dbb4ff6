// The pages of a rank: what is written where it does not belong is seen.
#include "lab/rank/rank_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr std::uint32_t kPageBytes = 1'024;
const RoomId kRoom(7);
const Binding kBinding{7, 1};

std::byte& byte_of(const RankPages& pages, PageIndex page) {
  const Region region = pages.args().regions.front();
  return region.base[page.value() * region.item_bytes];
}

TEST(RankPages, HandsOutTheLowestFreeOnes) {
  auto pages = RankPages::make(8, kPageBytes, 2);
  ASSERT_TRUE(pages);
  EXPECT_THAT(*pages->take(3, 1, false), ElementsAre(PageIndex(0), PageIndex(1), PageIndex(2)));
  pages->give_back(std::vector{PageIndex(1)}, false);
  EXPECT_THAT(*pages->take(2, 2, false), ElementsAre(PageIndex(1), PageIndex(3)));
  EXPECT_FALSE(pages->take(5, 1, false));
  EXPECT_EQ(pages->free_pages(), 4U);
}

TEST(RankPages, AFillIsRightForItsRoomAlone) {
  auto pages = RankPages::make(4, kPageBytes, 2);
  const auto taken = *pages->take(2, 1, false);
  EXPECT_EQ(pages->wrong(taken, kRoom, kBinding), 2U * kPageBytes);
  pages->fill(taken, kRoom, kBinding);
  EXPECT_EQ(pages->wrong(taken, kRoom, kBinding), 0U);
  EXPECT_EQ(pages->wrong(taken, RoomId(8), kBinding), 2U * kPageBytes);
  EXPECT_EQ(pages->wrong(taken, kRoom, Binding{7, 2}), 2U * kPageBytes);
  byte_of(*pages, taken[1]) ^= std::byte{1};
  EXPECT_EQ(pages->wrong(taken, kRoom, kBinding), 8U);
}

TEST(RankPages, AWriteToAFreePageIsSeenOnce) {
  auto pages = RankPages::make(4, kPageBytes, 2);
  pages->give_back(*pages->take(4, 1, false), false);
  EXPECT_THAT(pages->take_spoiled(), IsEmpty());
  byte_of(*pages, PageIndex(2)) ^= std::byte{1};
  EXPECT_THAT(pages->take_spoiled(), ElementsAre(Pair(2U, 8U)));
  EXPECT_THAT(pages->take_spoiled(), IsEmpty());
}

TEST(RankPages, AWriteToAFreePageIsSeenWhenItIsHandedOut) {
  auto pages = RankPages::make(1, kPageBytes, 2);
  byte_of(*pages, PageIndex(0)) ^= std::byte{1};
  ASSERT_TRUE(pages->take(1, 1, false));
  EXPECT_THAT(pages->take_spoiled(), ElementsAre(Pair(0U, 8U)));
}

TEST(RankPages, RefusesAPageOfBrokenWords) { EXPECT_FALSE(RankPages::make(1, 1'000, 1)); }

}  // namespace
}  // namespace kvferry::lab
