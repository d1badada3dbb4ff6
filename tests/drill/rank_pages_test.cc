// The pages of a rank: what is written where it does not belong is seen.
#include "lab/rank/rank_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

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

TEST(RankPages, GrantedPagesHoldTheirPaintOrWhatTheirSenderHad) {
  auto pages = RankPages::make(4, kPageBytes, 2);
  const auto taken = *pages->take(2, 1, false);
  EXPECT_EQ(pages->foreign(taken, kRoom, kBinding), 0U);
  pages->fill(std::vector{taken[0]}, kRoom, kBinding);
  EXPECT_EQ(pages->foreign(taken, kRoom, kBinding), 0U);
  EXPECT_GT(pages->foreign(taken, RoomId(8), kBinding), kPageBytes / 2);
  const std::byte own = byte_of(*pages, taken[0]);
  byte_of(*pages, taken[0]) = kGranted;
  EXPECT_EQ(pages->foreign(taken, kRoom, kBinding), 0U) << "a word that half has come";
  byte_of(*pages, taken[0]) = std::byte{0};
  EXPECT_EQ(pages->foreign(taken, kRoom, kBinding), 0U) << "the rest of a frame that was given up";
  byte_of(*pages, taken[0]) = own ^ std::byte{1};
  EXPECT_EQ(pages->foreign(taken, kRoom, kBinding), 1U);
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

// --- a model's pages on several ranks ---

constexpr std::uint32_t kModelPageBytes = 8'192;  // 2 layers, 4 heads

RankPages part_of(std::uint32_t tp_rank, std::uint32_t tp_size, std::uint32_t pp_rank,
                  std::uint32_t pp_size) {
  auto pages =
      RankPages::make(2, kModelPageBytes, 1, {2, 4, {tp_rank, tp_size, pp_rank, pp_size, 0, 1}});
  EXPECT_TRUE(pages);
  return std::move(*pages);
}

// As a prefill rank's plan has it: what the two have in common of each page.
void copy_shared(const RankPages& from, const RankPages& to) {
  const KvArgs source = from.args();
  const KvArgs target = to.args();
  const auto head_bytes = static_cast<std::size_t>(source.head_dim);
  for (const Region& out : source.regions) {
    for (const Region& in : target.regions) {
      if (out.kind == RegionKind::kAux || out.kind != in.kind || out.layer != in.layer) continue;
      for (std::size_t token = 0; token < source.page_size_tokens * out.item_count; ++token) {
        for (std::uint32_t head = target.heads.begin; head < target.heads.end; ++head) {
          if (head < source.heads.begin || head >= source.heads.end) continue;
          const auto row = [&](const KvArgs& args, const Region& region) {
            const std::size_t heads = args.heads.end - args.heads.begin;
            return region.base + (token * heads + head - args.heads.begin) * head_bytes;
          };
          std::copy_n(row(source, out), head_bytes, row(target, in));
        }
      }
    }
  }
}

TEST(RankPages, ARankIsRightWhenEachOfItsWritersHasWritten) {
  const std::vector<PageIndex> both = {PageIndex(0), PageIndex(1)};
  RankPages layers0 = part_of(0, 1, 0, 2);
  RankPages layers1 = part_of(0, 1, 1, 2);
  RankPages heads1 = part_of(1, 2, 0, 1);
  for (RankPages* source : {&layers0, &layers1, &heads1}) source->fill(both, kRoom, kBinding);
  constexpr std::uint32_t kQuarter = kModelPageBytes / 4;

  const RankPages third = part_of(2, 4, 0, 1);
  EXPECT_EQ(third.components(), 4U);
  EXPECT_EQ(third.wrong(both, kRoom, kBinding), 2U * kQuarter);
  copy_shared(layers0, third);
  EXPECT_EQ(third.wrong(both, kRoom, kBinding), kQuarter) << "the other layer is missing";
  copy_shared(layers1, third);
  EXPECT_EQ(third.wrong(both, kRoom, kBinding), 0U);

  const RankPages fourth = part_of(3, 4, 0, 1);
  copy_shared(heads1, fourth);
  EXPECT_EQ(fourth.wrong(both, kRoom, kBinding), 0U) << "one writer has all of it";
  const RankPages second = part_of(1, 4, 0, 1);
  copy_shared(heads1, second);
  EXPECT_EQ(second.wrong(both, kRoom, kBinding), 2U * kQuarter) << "it has nothing of it";
}

TEST(RankPages, AnothersPartIsWrong) {
  const std::vector<PageIndex> one = {PageIndex(0)};
  RankPages source = part_of(0, 1, 0, 2);
  source.fill(one, kRoom, kBinding);
  const RankPages target = part_of(0, 1, 1, 2);
  const Region out = source.args().regions.front();
  const Region in = target.args().regions.front();
  std::copy_n(out.base, out.item_bytes, in.base);
  EXPECT_EQ(target.wrong(one, kRoom, kBinding), kModelPageBytes / 2);
}

TEST(RankPages, RefusesWhatCanNotBeSharedOut) {
  EXPECT_FALSE(RankPages::make(1, kModelPageBytes, 1, {2, 4, {0, 3, 0, 1, 0, 1}}));
  EXPECT_FALSE(RankPages::make(1, kModelPageBytes, 1, {2, 4, {0, 1, 0, 4, 0, 1}}));
  EXPECT_FALSE(RankPages::make(1, 1'024, 1, {2, 4, {0, 1, 0, 1, 0, 1}}));
}

}  // namespace
}  // namespace kvferry::lab
