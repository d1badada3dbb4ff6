#include "layout/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "shapes.h"

namespace kvferry::layout {
namespace {

using ::testing::HasSubstr;

LayoutShape sound() { return ranks_of({}).front(); }

std::string fault_of(const std::function<void(LayoutShape&)>& change) {
  LayoutShape shape = sound();
  change(shape);
  const Status status = check_shape(shape);
  if (status) {
    return "sound";
  }
  EXPECT_EQ(status.error().code, FailureCode::kLayoutMismatch);
  EXPECT_EQ(status.error().where, FailureWhere::kPeer);
  return status.error().what;
}

TEST(KvLayout, SoundShapesPass) {
  for (const EngineShape& engine :
       {EngineShape{}, EngineShape{.tp_size = 2}, EngineShape{.tp_size = 8},
        EngineShape{.tp_size = 4, .pp_size = 2, .keys_first = true}}) {
    for (const LayoutShape& shape : ranks_of(engine)) {
      EXPECT_TRUE(check_shape(shape));
    }
  }
}

TEST(KvLayout, ADummyRankHoldsNothing) {
  EXPECT_EQ(fault_of([](LayoutShape& s) {
              s.layers = {0, 0};
              s.heads = {0, 0};
              s.regions.clear();
            }),
            "sound");
}

TEST(KvLayout, FaultsAreNamed) {
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.page_size_tokens = 0; }),
              HasSubstr("page_size_tokens is 0"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.total_layers = 0; }), HasSubstr("total_layers"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.head_dim = 0xFFFF'FFFF; }), HasSubstr("head_dim"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.total_kv_heads = 0; }), HasSubstr("total_kv_heads"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.layers.end = 5; }),
              HasSubstr("layers [0, 5) is not within the total of 4"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.heads = {3, 2}; }), HasSubstr("heads [3, 2)"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.rank.tp_rank = 1; }), HasSubstr("tp_rank 1"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.rank.dp_size = 0; }), HasSubstr("dp_size 0"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.dtype = static_cast<DType>(9); }),
              HasSubstr("dtype 9"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.model_fingerprint.resize(2'000); }),
              HasSubstr("model_fingerprint"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.regions.resize(5'000); }), HasSubstr("5000 regions"));
}

TEST(KvLayout, RegionFaultsAreNamed) {
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.regions[1].item_bytes += 1; }),
              HasSubstr("regions[1] (value of layer 0): item_bytes is 65"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.regions[0].item_count = 0; }),
              HasSubstr("0 items of 64 bytes"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.regions[2].layer = 4; }),
              HasSubstr("not within layers [0, 4)"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.regions[2].layer = 0; }),
              HasSubstr("regions[2] is a second key region of layer 0"));
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.regions[3].item_count = 7; }),
              HasSubstr("regions[3] has 7 items, earlier ones have 6"));
  EXPECT_THAT(fault_of([](LayoutShape& s) {
                s.regions.push_back({RegionKind::kAux, 0, 64, 1, MemoryKind::kHost});
              }),
              HasSubstr("second aux region"));
  EXPECT_THAT(
      fault_of([](LayoutShape& s) {
        s.regions[static_cast<std::size_t>(find_region(s, RegionKind::kAux, 0))].item_bytes = 63;
      }),
      HasSubstr("an aux record has 64"));
  EXPECT_THAT(
      fault_of([](LayoutShape& s) {
        s.regions.push_back({RegionKind::kState, 1, 1ULL << 60, 0xFFFF'FFFF, MemoryKind::kHost});
      }),
      HasSubstr("more than any memory"));
  EXPECT_THAT(fault_of([](LayoutShape& s) {
                for (int i = 0; i < 3; ++i) {
                  s.regions.push_back({RegionKind::kState, 1, 1ULL << 61, 1, MemoryKind::kHost});
                }
              }),
              HasSubstr("in all"));
}

TEST(KvLayout, MakeShapeTakesEverythingButAddresses) {
  const LayoutShape expected = sound();
  KvArgs args;
  args.model_fingerprint = expected.model_fingerprint;
  args.page_size_tokens = expected.page_size_tokens;
  args.total_layers = expected.total_layers;
  args.total_kv_heads = expected.total_kv_heads;
  args.head_dim = expected.head_dim;
  args.dtype = expected.dtype;
  args.rank = expected.rank;
  args.layers = expected.layers;
  args.heads = expected.heads;
  for (const RegionShape& region : expected.regions) {
    args.regions.push_back(
        {region.kind, region.layer, nullptr, region.item_bytes, region.item_count, region.memory});
  }
  EXPECT_EQ(make_shape(args), expected);
  args.regions[0].item_bytes = 1;
  const auto refused = make_shape(args);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, FailureCode::kInvalidArgument);
}

std::string difference(const std::function<void(LayoutShape&)>& change) {
  LayoutShape peer = sound();
  change(peer);
  const auto mismatch = compare(sound(), peer);
  return mismatch ? mismatch->to_text() : "equal";
}

TEST(KvLayout, CompareNamesTheFieldAndBothValues) {
  EXPECT_EQ(difference([](LayoutShape&) {}), "equal");
  EXPECT_EQ(difference([](LayoutShape& s) { s.page_size_tokens = 32; }),
            "page_size_tokens: 4 here, 32 at the peer");
  EXPECT_EQ(difference([](LayoutShape& s) { s.model_fingerprint = "other"; }),
            "model_fingerprint: model here, other at the peer");
  EXPECT_EQ(difference([](LayoutShape& s) { s.dtype = DType::kBF16; }),
            "dtype: f16 here, bf16 at the peer");
  EXPECT_THAT(difference([](LayoutShape& s) { std::swap(s.regions[0], s.regions[1]); }),
              HasSubstr("region order, place 0: key of layer 0 here, value of layer 0"));
  EXPECT_THAT(difference([](LayoutShape& s) { s.regions.erase(s.regions.begin() + 7); }),
              HasSubstr("place 7: value of layer 3 here, state of layer 0 at the peer"));
  EXPECT_THAT(difference([](LayoutShape& s) { s.regions.back().item_bytes = 99; }),
              HasSubstr("item_bytes of state of layer 2"));
  EXPECT_THAT(difference([](LayoutShape& s) { s.regions[0].memory = MemoryKind::kDevice; }),
              HasSubstr("memory of key of layer 0: host here, device at the peer"));
  EXPECT_THAT(
      difference([](LayoutShape& s) {
        s.regions[static_cast<std::size_t>(find_region(s, RegionKind::kAux, 0))].item_bytes = 128;
      }),
      HasSubstr("item_bytes of aux: 64 here, 128"));
}

TEST(KvLayout, EveryComparedNumberIsNamed) {
  EXPECT_EQ(difference([](LayoutShape& s) { s.total_layers = 5; }),
            "total_layers: 4 here, 5 at the peer");
  EXPECT_EQ(difference([](LayoutShape& s) { s.total_kv_heads = 5; }),
            "total_kv_heads: 4 here, 5 at the peer");
  EXPECT_EQ(difference([](LayoutShape& s) { s.head_dim = 3; }), "head_dim: 2 here, 3 at the peer");
  EXPECT_EQ(difference([](LayoutShape& s) {
              s.regions[static_cast<std::size_t>(find_region(s, RegionKind::kAux, 0))].memory =
                  MemoryKind::kDevice;
            }),
            "memory of aux: host here, device at the peer");
}

TEST(KvLayout, ARankWithoutARegionIsToldFromOneWithAnother) {
  LayoutShape peer = sound();
  peer.regions.pop_back();
  const auto mismatch = compare(sound(), peer);
  ASSERT_TRUE(mismatch);
  EXPECT_THAT(mismatch->to_text(), HasSubstr("here, nothing at the peer"));
  EXPECT_THAT(compare(peer, sound())->to_text(), HasSubstr("nothing here"));
}

TEST(KvLayout, ItemsOfOtherHeadCountsAreComparedPerHead) {
  const LayoutShape half = ranks_of({.tp_size = 2}).front();
  EXPECT_FALSE(compare(sound(), half));
  LayoutShape wrong = half;
  wrong.regions[0].item_bytes *= 2;
  EXPECT_EQ(compare(sound(), wrong)->to_text(),
            "item_bytes of key of layer 0: 64 for 4 heads here, 64 for 2 heads at the peer");
  // A rank without heads has no bytes per head; its item sizes are compared as they are.
  LayoutShape none = sound();
  none.heads = {0, 0};
  EXPECT_THAT(compare(none, half)->to_text(), HasSubstr("64 for 0 heads here, 32 for 2 heads"));
}

TEST(KvLayout, AMissingAuxRegionIsNoMismatch) {
  const LayoutShape without = ranks_of({.has_aux = false}).front();
  EXPECT_FALSE(compare(sound(), without));
  EXPECT_FALSE(compare(without, sound()));
}

TEST(KvLayout, BordersOfEveryNumberAreTold) {
  const auto ok = [](const std::function<void(LayoutShape&)>& change) {
    return fault_of(change) == "sound";
  };
  EXPECT_TRUE(ok([](LayoutShape& s) { s.rank.dp_size = 1U << 16; }));
  EXPECT_FALSE(ok([](LayoutShape& s) { s.rank.dp_size = (1U << 16) + 1; }));
  EXPECT_TRUE(ok([](LayoutShape& s) { s.model_fingerprint.resize(1'024); }));
  EXPECT_FALSE(ok([](LayoutShape& s) { s.model_fingerprint.resize(1'025); }));
  EXPECT_FALSE(ok([](LayoutShape& s) { s.rank.pp_rank = 1; }));
  EXPECT_FALSE(ok([](LayoutShape& s) { s.heads.end = 5; }));
  EXPECT_FALSE(ok([](LayoutShape& s) { s.regions[0].item_bytes = 0; }));
  // Layers that begin later: the region of layer 0 is outside.
  EXPECT_THAT(fault_of([](LayoutShape& s) { s.layers.begin = 1; }),
              HasSubstr("regions[0] (key of layer 0): layer is not within layers [1, 4)"));
}

TEST(KvLayout, SizesOfPoolsAndSlicesOfRanksMayDiffer) {
  EXPECT_EQ(difference([](LayoutShape& s) {
              for (RegionShape& region : s.regions) {
                region.item_count += 10;
              }
            }),
            "equal");
  const auto whole = ranks_of({}).front();
  for (const EngineShape& engine : {EngineShape{.tp_size = 2}, EngineShape{.tp_size = 8},
                                    EngineShape{.tp_size = 2, .pp_size = 2}}) {
    for (const LayoutShape& rank : ranks_of(engine)) {
      EXPECT_FALSE(compare(whole, rank)) << compare(whole, rank)->to_text();
      EXPECT_FALSE(compare(rank, whole));
    }
  }
}

TEST(KvLayout, NumericsCompareFieldByField) {
  const Numerics local{"a", 1, 2, "f"};
  EXPECT_FALSE(compare(local, local));
  EXPECT_EQ(compare(local, {"b", 1, 2, "f"})->field, "kernel_library");
  EXPECT_EQ(compare(local, {"a", 2, 2, "f"})->to_text(), "threads: 1 here, 2 at the peer");
  EXPECT_EQ(compare(local, {"a", 1, 3, "f"})->field, "prefill_chunk_tokens");
  EXPECT_EQ(compare(local, {"a", 1, 2, "g"})->field, "flags");
}

}  // namespace
}  // namespace kvferry::layout
