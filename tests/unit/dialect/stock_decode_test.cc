// Which stock decode ranks a prefill rank serves, and with which layout each stands in the core.
#include "dialect/sglang/stock_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kHeadBytes = 64;  // of one head in a page

// One of tp_size prefill ranks; 8 heads (or latents), two layers.
LayoutShape prefill(std::uint32_t tp_size, std::uint32_t tp_rank, bool latents = false) {
  LayoutShape out;
  out.page_size_tokens = 16;
  out.total_layers = 2;
  out.total_kv_heads = 8;
  out.head_dim = 4;
  out.dtype = DType::kU8;
  out.layers = {0, 2};
  out.rank.tp_size = tp_size;
  out.rank.tp_rank = tp_rank;
  const std::uint32_t heads = latents ? 8 : 8 / tp_size;
  out.heads = latents ? HeadSlice{0, 8} : HeadSlice{tp_rank * heads, (tp_rank + 1) * heads};
  for (const RegionKind kind : {RegionKind::kKey, RegionKind::kValue}) {
    for (std::uint32_t layer = 0; layer < (latents && kind == RegionKind::kValue ? 0U : 2U);
         ++layer) {
      out.regions.push_back(
          {latents ? RegionKind::kOther : kind, layer, heads * kHeadBytes, 32, MemoryKind::kHost});
    }
  }
  out.regions.push_back({RegionKind::kAux, 0, kAuxRecordBytes, 8, MemoryKind::kHost});
  return out;
}

DecodeRank decode(std::uint32_t tp_size, std::uint32_t tp_rank, bool latents = false) {
  DecodeRank out;
  out.tp_size = tp_size;
  out.tp_rank = tp_rank;
  out.memory.kv_pointers.assign(latents ? 2 : 4, 0x1000);
  out.memory.kv_item_bytes = (latents ? 8 : 8 / tp_size) * kHeadBytes;
  return out;
}

std::string why_not(const DecodeRank& rank, const LayoutShape& own) {
  const auto layout = layout_of(rank, own);
  return layout ? "it is served" : layout.error().what;
}

TEST(StockDecode, EqualSizesHaveOurLayout) {
  EXPECT_EQ(*layout_of(decode(2, 1), prefill(2, 1)), prefill(2, 1));
}

TEST(StockDecode, ARankOfALargerEngineHasAPartOfOurHeads) {
  const auto layout = layout_of(decode(4, 3), prefill(2, 1));
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(*layout, prefill(4, 3));
}

TEST(StockDecode, ARankOfASmallerEngineHasOurHeadsAndOthers) {
  const auto layout = layout_of(decode(1, 0), prefill(2, 1));
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(*layout, prefill(1, 0));
}

// Whoever it asks has it, and is asked by it: SGLang's own formula.
TEST(StockDecode, EveryDecodeRankIsServedByThoseThatHaveItsHeads) {
  for (const std::uint32_t prefill_size : {1U, 2U, 4U}) {
    for (const std::uint32_t decode_size : {1U, 2U, 4U}) {
      for (std::uint32_t rank = 0; rank < decode_size; ++rank) {
        std::uint32_t served = 0;
        for (std::uint32_t own = 0; own < prefill_size; ++own) {
          const auto layout = layout_of(decode(decode_size, rank), prefill(prefill_size, own));
          const HeadSlice theirs = prefill(decode_size, rank).heads;
          const HeadSlice ours = prefill(prefill_size, own).heads;
          const bool shares = theirs.begin < ours.end && ours.begin < theirs.end;
          EXPECT_EQ(layout.has_value(), shares) << "decode " << rank << " of " << decode_size
                                                << ", prefill " << own << " of " << prefill_size;
          served += layout ? ours.end - ours.begin : 0;
        }
        EXPECT_GE(served, 8 / decode_size);
      }
    }
  }
}

TEST(StockDecode, LatentsAreTheSameOnEveryRankAndDummiesAreNotServed) {
  const auto layout = layout_of(decode(4, 2, true), prefill(2, 1, true));
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(layout->regions, prefill(2, 1, true).regions);
  for (const std::uint32_t own : {0U, 1U}) {
    EXPECT_THAT(why_not(decode(1, 0, true), prefill(2, own, true)),
                HasSubstr("prefill has 2 TP ranks and decode 1: ranks that send nothing"));
  }
}

TEST(StockDecode, SizesThatDoNotDivideAndSharesThatAreNotWholeAreRefused) {
  EXPECT_THAT(why_not(decode(3, 0), prefill(2, 0)), HasSubstr("3"));
  LayoutShape few = prefill(2, 0);
  few.total_kv_heads = 2;
  few.heads = {0, 1};
  EXPECT_THAT(why_not(decode(4, 1), few), HasSubstr("2 KV heads on 2 TP ranks of prefill and 4"));
  few = prefill(4, 0);  // whose heads are copies of other ranks'
  few.total_kv_heads = 2;
  few.heads = {0, 1};
  EXPECT_THAT(why_not(decode(2, 0), few), HasSubstr("2 KV heads on 4 TP ranks of prefill and 2"));
}

TEST(StockDecode, ItemsMustBeOfItsShare) {
  DecodeRank whole = decode(2, 0);
  whole.memory.kv_item_bytes = 8 * kHeadBytes;
  EXPECT_THAT(why_not(whole, prefill(1, 0)), HasSubstr("has 512 bytes on decode, not the 256"));
}

TEST(StockDecode, AnotherPrefillRanksDecodeRankIsRefused) {
  EXPECT_THAT(why_not(decode(4, 3), prefill(2, 0)),
              HasSubstr("TP rank 3 belongs to another prefill rank than 0"));
}

}  // namespace
}  // namespace kvferry::sglang
