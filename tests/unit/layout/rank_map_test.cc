#include "layout/rank_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shapes.h"

namespace kvferry::layout {
namespace {

using ::testing::HasSubstr;

std::vector<std::uint32_t> indices_of(const std::vector<Writer>& writers) {
  std::vector<std::uint32_t> indices;
  for (const Writer& writer : writers) {
    indices.push_back(writer.source_index);
  }
  return indices;
}

TEST(RankMap, OneToOne) {
  const auto ranks = ranks_of({});
  const auto writers = writers_for(ranks[0], ranks);
  ASSERT_TRUE(writers);
  ASSERT_EQ(writers->size(), 1U);
  const Writer& writer = writers->front();
  EXPECT_EQ(writer.part.layers, (LayerRange{0, 4}));
  EXPECT_EQ(writer.part.heads, (HeadSlice{0, 4}));
  EXPECT_TRUE(writer.sends_aux);
  EXPECT_TRUE(writer.sends_state);
}

TEST(RankMap, ReplicatedHeadsComeFromTheLowestRank) {
  const auto writers = writers_for(ranks_of({}).front(), ranks_of({.tp_size = 8}));
  ASSERT_TRUE(writers);
  EXPECT_EQ(indices_of(*writers), (std::vector<std::uint32_t>{0, 2, 4, 6}));
}

TEST(RankMap, AuxComesFromTheLastLayersLowestHead) {
  const auto writers = writers_for(ranks_of({}).front(), ranks_of({.tp_size = 2, .pp_size = 2}));
  ASSERT_TRUE(writers);
  ASSERT_EQ(writers->size(), 4U);
  for (const Writer& writer : *writers) {
    EXPECT_EQ(writer.sends_aux, writer.source_index == 2) << writer.source_index;
    EXPECT_EQ(writer.sends_state, writer.source_index % 2 == 0) << writer.source_index;
  }
}

TEST(RankMap, OnlyStateLayersMakeAStateWriter) {
  const auto writers = writers_for(ranks_of({}).front(), ranks_of({.pp_size = 4}));
  ASSERT_TRUE(writers);
  for (const Writer& writer : *writers) {
    EXPECT_EQ(writer.sends_state, writer.source_index % 2 == 0);
  }
}

TEST(RankMap, NamesTheFirstPlaceThatNobodyHas) {
  auto sources = ranks_of({.tp_size = 2, .pp_size = 2});
  sources.erase(sources.begin() + 1);
  const auto writers = writers_for(ranks_of({}).front(), sources);
  ASSERT_FALSE(writers);
  EXPECT_EQ(writers.error().code, FailureCode::kLayoutMismatch);
  EXPECT_THAT(writers.error().what, HasSubstr("layer 0, head 2"));
  EXPECT_THAT(writers_for(ranks_of({}).front(), {}).error().what, HasSubstr("layer 0, head 0"));
}

TEST(RankMap, PartlyOverlappingRanksAreCutToTheRest) {
  auto sources = ranks_of({.tp_size = 2});
  sources[0].heads = {0, 3};
  sources[1].heads = {1, 4};
  const auto writers = writers_for(ranks_of({}).front(), sources);
  ASSERT_TRUE(writers);
  EXPECT_EQ(writers->at(1).part.heads, (HeadSlice{3, 4}));
}

TEST(RankMap, RefusesARestThatIsNoRectangle) {
  auto sources = ranks_of({.tp_size = 2});
  sources[0].heads = {0, 2};
  sources[0].layers = {0, 2};
  sources[1].heads = {0, 4};
  const auto writers = writers_for(ranks_of({}).front(), sources);
  ASSERT_FALSE(writers);
  EXPECT_THAT(writers.error().what, HasSubstr("irregularly"));
}

TEST(RankMap, ADummyTargetHasNoWriters) {
  LayoutShape dummy = ranks_of({}).front();
  dummy.layers = {0, 0};
  dummy.heads = {0, 0};
  const auto writers = writers_for(dummy, ranks_of({}));
  ASSERT_TRUE(writers);
  EXPECT_TRUE(writers->empty());
  // One that holds layers but no heads is one, too.
  dummy.layers = {0, 4};
  EXPECT_TRUE(writers_for(dummy, ranks_of({}))->empty());
}

TEST(RankMap, ADummySourceWritesNothing) {
  auto sources = ranks_of({.tp_size = 2});
  sources.insert(sources.begin(), sources.front());
  sources.front().heads = {0, 0};
  const auto writers = writers_for(ranks_of({}).front(), sources);
  ASSERT_TRUE(writers);
  EXPECT_EQ(indices_of(*writers), (std::vector<std::uint32_t>{1, 2}));
}

// Against a dumb map of cells: every layer and head of the target has exactly one writer, who has
// it.
RC_GTEST_PROP(RankMap, PartsTileTheTarget, ()) {
  const auto engine = [] {
    EngineShape shape;
    shape.total_layers = *rc::gen::inRange(1U, 9U);
    shape.total_kv_heads = *rc::gen::inRange(1U, 9U);
    shape.tp_size = *rc::gen::inRange(1U, 9U);
    shape.pp_size = *rc::gen::inRange(1U, shape.total_layers + 1);
    return shape;
  };
  EngineShape source_engine = engine();
  EngineShape target_engine = engine();
  target_engine.total_layers = source_engine.total_layers;
  target_engine.total_kv_heads = source_engine.total_kv_heads;
  target_engine.pp_size = std::min(target_engine.pp_size, target_engine.total_layers);
  const auto sources = ranks_of(source_engine);
  for (const LayoutShape& target : ranks_of(target_engine)) {
    const auto writers = writers_for(target, sources);
    RC_ASSERT(writers.has_value());
    RC_ASSERT(std::count_if(writers->begin(), writers->end(),
                            [](const Writer& w) { return w.sends_aux; }) == 1);
    for (std::uint32_t layer = target.layers.begin; layer < target.layers.end; ++layer) {
      for (std::uint32_t head = target.heads.begin; head < target.heads.end; ++head) {
        int holders = 0;
        for (const Writer& writer : *writers) {
          const LayoutShape& source = sources[writer.source_index];
          if (writer.part.layers.begin <= layer && layer < writer.part.layers.end &&
              writer.part.heads.begin <= head && head < writer.part.heads.end) {
            ++holders;
            RC_ASSERT(source.layers.begin <= layer && layer < source.layers.end);
            RC_ASSERT(source.heads.begin <= head && head < source.heads.end);
          }
        }
        RC_ASSERT(holders == 1);
      }
    }
  }
}

}  // namespace
}  // namespace kvferry::layout
