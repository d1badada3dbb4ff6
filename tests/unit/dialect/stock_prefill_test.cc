// Addresses that carry what is known of a stock prefill rank, and who can be a pair with whom.
#include "dialect/sglang/stock_prefill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_rig.h"

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;

PrefillRank rank(std::uint32_t tp_size = 1, std::uint32_t tp_rank = 0) {
  PrefillRank out;
  out.endpoint = {"10.0.0.9", 7'000};
  out.registry = "10.0.0.9:8998";
  out.shape.tp_size = tp_size;
  out.place.tp_rank = tp_rank;
  out.page_tokens = 16;
  return out;
}

TEST(StockPrefill, AnAddressCarriesTheRankThereAndBack) {
  PrefillRank full = rank(4, 3);
  full.endpoint = {"fd00::9", 65'535};
  full.dp_rank = 2;
  full.shape.cp_size = 2;
  full.shape.pp_size = 3;
  full.shape.dsa_cache_layer_split = true;
  full.shape.kv_cache_sharding = true;
  full.place = {3, 2, 1};  // TP, PP, CP
  EXPECT_EQ(to_address(full).endpoint, "[fd00::9]:65535");
  for (const PrefillRank& each : {rank(), full}) {
    EXPECT_EQ(prefill_rank_of(to_address(each)), each);
  }
}

TEST(StockPrefill, RanksThatDifferInAnythingHaveOtherKeys) {
  PrefillRank other = rank();
  other.endpoint.port = 7'001;
  EXPECT_NE(to_address(other).public_key, to_address(rank()).public_key);
  other = rank();
  other.registry = "10.0.0.8:8998";
  EXPECT_NE(to_address(other).public_key, to_address(rank()).public_key);
}

TEST(StockPrefill, OtherAddressesAreNone) {
  const PeerAddress good = to_address(rank());
  EXPECT_FALSE(prefill_rank_of({good.endpoint, ""}));
  EXPECT_FALSE(prefill_rank_of({good.endpoint, "f{Dv>^BR5)1AoYjjb6o7LP>7%?8UG}6@jI5$r*tU"}));
  EXPECT_FALSE(prefill_rank_of({"10.0.0.9:7001", good.public_key}));
  EXPECT_FALSE(prefill_rank_of({good.endpoint, good.public_key + " 1"}));
  EXPECT_FALSE(prefill_rank_of({good.endpoint, good.public_key + " "}));
  for (std::size_t length = 0; length < good.public_key.size(); ++length) {
    EXPECT_FALSE(prefill_rank_of({good.endpoint, good.public_key.substr(0, length)})) << length;
  }
  std::string bad = good.public_key;
  bad.back() = '2';
  EXPECT_FALSE(prefill_rank_of({good.endpoint, bad}));
}

TEST(StockPrefill, ARankOfTwoWritesItsHalfOfTheHeads) {
  const LayoutShape own = DecodeRig::self({2, 1}).layout;
  const auto pairing = pair_with(rank(2, 1), own);
  ASSERT_TRUE(pairing) << pairing.error().what;
  EXPECT_FALSE(pairing->is_dummy);
  EXPECT_EQ(pairing->layout.heads, (HeadSlice{2, 4}));
  EXPECT_EQ(pairing->layout.regions[0].item_bytes, own.regions[0].item_bytes / 2);
  EXPECT_EQ(pairing->mapping.prefill_successes, 2U);
  ASSERT_EQ(pairing->page_slices.size(), 2U);
  EXPECT_EQ(pairing->page_slices[0].offset, 8U);
  EXPECT_EQ(pairing->page_slices[0].piece_count, 16U);
}

TEST(StockPrefill, OfLatentsTheFirstRankWritesAllAndTheOthersAreDummies) {
  const LayoutShape own = DecodeRig::self({2, 1, true}).layout;
  EXPECT_FALSE(pair_with(rank(2, 0), own)->is_dummy);
  EXPECT_TRUE(pair_with(rank(2, 1), own)->is_dummy);
  EXPECT_EQ(pair_with(rank(2, 0), own)->page_slices.size(), 1U);
}

TEST(StockPrefill, WhatIsNotServedIsRefusedWithItsSizes) {
  const LayoutShape own = DecodeRig::self({}).layout;
  const auto reason = [](const PrefillRank& prefill, const LayoutShape& decode) {
    const auto pairing = pair_with(prefill, decode);
    return pairing ? std::string("served") : pairing.error().what;
  };
  EXPECT_EQ(reason(rank(), own), "served");
  PrefillRank other = rank(3);
  EXPECT_THAT(reason(other, own), HasSubstr("4 KV heads on 3 TP ranks"));
  other = rank(8);
  EXPECT_THAT(reason(other, own), HasSubstr("4 KV heads on 8 TP ranks"));
  other = rank();
  other.shape.pp_size = 2;
  EXPECT_THAT(reason(other, own), HasSubstr("prefill has 2 PP ranks and decode 1"));
  other = rank();
  other.shape.kv_cache_sharding = true;
  EXPECT_THAT(reason(other, own), HasSubstr("shards its KV cache"));
  other = rank();
  other.shape.cp_size = 2;
  EXPECT_EQ(reason(other, own), "served") << "the first CP rank has all";
  other.shape.dsa_cache_layer_split = true;
  EXPECT_THAT(reason(other, own), HasSubstr("lies on 2 CP ranks"));
  other = rank();
  other.page_tokens = 64;
  EXPECT_THAT(reason(other, own), HasSubstr("page_size_tokens: 16 here, 64 at the peer"));
  other = rank(2, 1);
  LayoutShape two = DecodeRig::self({2, 2}).layout;
  EXPECT_THAT(reason(other, two), HasSubstr("TP rank 1 holds nothing of decode's TP rank 0"));
  two.rank.tp_size = 3;
  EXPECT_THAT(reason(rank(2), two), HasSubstr("neither size divides the other"));
}

}  // namespace
}  // namespace kvferry::sglang
