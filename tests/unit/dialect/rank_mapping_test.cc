#include "dialect/sglang/rank_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Case {
  std::string name;
  PrefillShape prefill;
  DecodeShape decode;
  RankMapping expected;
};

DecodeShape decode_of(std::uint32_t tp_size, std::uint32_t rank, KvKind kv = KvKind::kHeads) {
  DecodeShape shape;
  shape.tp_size = tp_size;
  shape.engine_rank = rank;
  shape.kv = kv;
  return shape;
}

DecodeShape decode_pp(std::uint32_t pp_size, std::uint32_t pp_rank) {
  DecodeShape shape;
  shape.pp_size = pp_size;
  shape.pp_rank = pp_rank;
  return shape;
}

DecodeShape pulling_all(DecodeShape shape) {
  shape.pull_from_all_cp_ranks = true;
  return shape;
}

// tp, cp, pp ranks, real one, others are dummies, decode ranks, successes.
const Case kCases[] = {
    {"alone", {1, 1, 1}, decode_of(1, 0), {{0}, {0}, {0}, 0, false, 1, 1}},
    {"equal", {4, 1, 1}, decode_of(4, 3), {{3}, {0}, {0}, 3, false, 1, 1}},
    {"rank beyond its group", {2, 1, 1}, decode_of(2, 5), {{1}, {0}, {0}, 1, false, 1, 1}},
    {"more decode ranks", {2, 1, 1}, decode_of(8, 5), {{1}, {0}, {0}, 1, false, 4, 1}},
    {"fewer decode ranks", {4, 1, 1}, decode_of(2, 1), {{2, 3}, {0}, {0}, 2, false, 1, 2}},
    {"fewer, latents",
     {4, 1, 1},
     decode_of(2, 1, KvKind::kLatents),
     {{2, 3}, {0}, {0}, 2, true, 1, 1}},
    {"fewer, hybrid latents",
     {4, 1, 1},
     decode_of(2, 0, KvKind::kHybridLatents),
     {{0, 1}, {0}, {0}, 0, false, 1, 2}},
    {"first CP rank only", {1, 4, 1}, decode_of(1, 0), {{0}, {0}, {0}, 0, false, 1, 1}},
    {"all CP ranks",
     {1, 4, 1},
     pulling_all(decode_of(1, 0)),
     {{0}, {0, 1, 2, 3}, {0}, 0, false, 1, 4}},
    {"layers split over CP", {1, 2, 1, true}, decode_of(1, 0), {{0}, {0, 1}, {0}, 0, false, 1, 2}},
    {"pages split over CP",
     {1, 2, 1, false, true},
     decode_of(1, 0, KvKind::kLatents),
     {{0}, {0, 1}, {0}, 0, false, 1, 2}},
    {"pages split over TP",
     {2, 1, 1, false, true},
     decode_of(2, 1, KvKind::kLatents),
     {{0, 1}, {0}, {0}, std::nullopt, false, 2, 2}},
    {"heads are never sharded by pages",
     {2, 1, 1, false, true},
     decode_of(2, 1),
     {{1}, {0}, {0}, 1, false, 1, 1}},
    {"equal PP", {1, 1, 4}, decode_pp(4, 2), {{0}, {0}, {2}, 0, false, 1, 1}},
    {"decode without PP", {1, 1, 3}, decode_pp(1, 0), {{0}, {0}, {0, 1, 2}, 0, false, 1, 3}},
    {"all at once",
     {4, 2, 2},
     pulling_all(decode_of(2, 1)),
     {{2, 3}, {0, 1}, {0, 1}, 2, false, 1, 8}},
};

TEST(RankMapping, FollowsTheTable) {
  for (const Case& each : kCases) {
    const auto mapping = map_ranks(each.prefill, each.decode);
    ASSERT_TRUE(mapping) << each.name << ": " << mapping.error().what;
    EXPECT_EQ(*mapping, each.expected) << each.name;
  }
}

TEST(RankMapping, SaysWhichSizesDoNotFit) {
  const auto problem = [](PrefillShape prefill, DecodeShape decode) {
    const auto mapping = map_ranks(prefill, decode);
    return mapping ? std::string("fits") : mapping.error().what;
  };
  EXPECT_THAT(problem({4, 1, 1}, decode_of(3, 0)),
              HasSubstr("prefill has 4 TP ranks and decode 3"));
  EXPECT_THAT(problem({6, 1, 1}, decode_of(4, 0)), HasSubstr("neither size divides the other"));
  EXPECT_THAT(problem({4, 1, 1, false, true}, decode_of(2, 0, KvKind::kLatents)),
              HasSubstr("over 4 TP ranks, decode has 2"));
  EXPECT_THAT(problem({1, 1, 4}, decode_pp(2, 0)),
              HasSubstr("prefill has 4 PP ranks and decode 2"));
  DecodeShape with_cp = decode_of(1, 0);
  with_cp.cp_size = 2;
  EXPECT_THAT(problem({1, 2, 1}, with_cp), HasSubstr("decode has 2 CP ranks (prefill 2)"));
  EXPECT_THAT(problem({0, 1, 1}, decode_of(1, 0)), HasSubstr("prefill's tp_size is 0"));
  EXPECT_THAT(problem({1, 1, 1}, decode_of(0, 0)), HasSubstr("decode's tp_size is 0"));
  EXPECT_THAT(problem({1'025, 1, 1}, decode_of(1, 0)), HasSubstr("expected 1 to 1024"));
  EXPECT_THAT(problem({1'024, 1'024, 2}, decode_of(1, 0)), HasSubstr("at most 65536"));
  EXPECT_THAT(problem({1, 1, 1}, decode_pp(2, 2)), HasSubstr("pp_rank is 2"));
}

// Whoever a prefill rank expects metadata from also sends it: for each pair of sizes the decode
// ranks that name a prefill rank are as many as they tell it.
TEST(RankMapping, BothSidesCountAlike) {
  for (const std::uint32_t prefill_tp : {1U, 2U, 4U, 8U}) {
    for (const std::uint32_t decode_tp : {1U, 2U, 4U, 8U}) {
      std::vector<std::uint32_t> named(prefill_tp, 0);
      std::set<std::uint32_t> expected;
      for (std::uint32_t rank = 0; rank < decode_tp; ++rank) {
        const auto mapping = map_ranks({prefill_tp, 1, 1}, decode_of(decode_tp, rank));
        ASSERT_TRUE(mapping);
        expected.insert(mapping->decode_ranks);
        for (const std::uint32_t tp : mapping->tp_ranks) {
          ++named[tp];
        }
      }
      EXPECT_THAT(expected, ElementsAre(named[0])) << prefill_tp << " to " << decode_tp;
      EXPECT_THAT(named, ::testing::Each(named[0])) << prefill_tp << " to " << decode_tp;
    }
  }
}

TEST(RankMapping, EveryPrefillRankHasItsOwnNumber) {
  const PrefillShape shape{4, 2, 3};
  std::set<std::uint32_t> ids;
  for (std::uint32_t tp = 0; tp < 4; ++tp) {
    for (std::uint32_t pp = 0; pp < 3; ++pp) {
      for (std::uint32_t cp = 0; cp < 2; ++cp) {
        ids.insert(prefill_rank_id(shape, {tp, pp, cp}));
      }
    }
  }
  EXPECT_EQ(ids.size(), 24U);
  EXPECT_EQ(*ids.begin(), 0U);
  EXPECT_EQ(*ids.rbegin(), 23U);
  EXPECT_EQ(prefill_rank_id(shape, {2, 1, 1}), 15U);
}

TEST(RankMapping, DummiesAreAmongThoseWhoAcknowledge) {
  const PrefillShape prefill{4, 1, 1};
  const auto mapping = map_ranks(prefill, decode_of(2, 1, KvKind::kLatents));
  ASSERT_TRUE(mapping);
  EXPECT_FALSE(mapping->is_dummy(2));
  EXPECT_TRUE(mapping->is_dummy(3));
  EXPECT_THAT(prefill_rank_ids(prefill, *mapping), ElementsAre(2, 3));
}

}  // namespace
}  // namespace kvferry::sglang
