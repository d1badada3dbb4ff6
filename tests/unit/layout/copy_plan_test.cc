// Copy plans against a dumb oracle: every byte of every source item is named by what it means
// (kind, layer, token, head, byte), all writes are executed, and every target byte must have the
// name that the target's own layout gives to its place, written exactly once.
#include "layout/copy_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>

#include "../wire/field_changes.h"
#include "layout/coverage.h"
#include "layout/kv_layout.h"
#include "layout/rank_map.h"
#include "shapes.h"

namespace kvferry::layout {
namespace {

using ::testing::HasSubstr;
using Memory = std::vector<std::vector<std::string>>;  // by region: a name for each byte

// What the byte at offset of an item means, in words that are the same on every rank.
std::string name_of(const LayoutShape& shape, std::size_t region, std::uint32_t item,
                    std::uint64_t offset) {
  const RegionShape& r = shape.regions[region];
  if (r.kind != RegionKind::kKey && r.kind != RegionKind::kValue) {
    // Tensors of one kind and layer are told apart by their size.
    return fmt::format("{} layer {} size {} item {} byte {}", to_string(r.kind), r.layer,
                       r.item_bytes, item, offset);
  }
  const std::uint64_t head_bytes = std::uint64_t{shape.head_dim} * dtype_bytes(shape.dtype);
  const std::uint64_t token_bytes = head_bytes * (shape.heads.end - shape.heads.begin);
  return fmt::format("{} layer {} item {} token {} head {} byte {}", to_string(r.kind), r.layer,
                     item, offset / token_bytes,
                     shape.heads.begin + offset % token_bytes / head_bytes, offset % head_bytes);
}

Memory empty_memory(const LayoutShape& shape) {
  Memory memory;
  for (const RegionShape& region : shape.regions) {
    memory.emplace_back(region.item_bytes * region.item_count);
  }
  return memory;
}

Memory source_memory(const LayoutShape& shape) {
  Memory memory = empty_memory(shape);
  for (std::size_t region = 0; region < shape.regions.size(); ++region) {
    const std::uint64_t item_bytes = shape.regions[region].item_bytes;
    for (std::uint64_t at = 0; at < memory[region].size(); ++at) {
      memory[region][at] =
          name_of(shape, region, static_cast<std::uint32_t>(at / item_bytes), at % item_bytes);
    }
  }
  return memory;
}

// Runs the copies; each must also be within what the target allows, and none may land twice.
std::string execute(const std::vector<ByteCopy>& copies, const Memory& source,
                    const LayoutShape& target_shape, Memory& target, CoverageSet& coverage) {
  for (const ByteCopy& copy : copies) {
    if (coverage.add(copy.target_region, copy.target_item, copy.offset_in_item, copy.length) !=
        CoverageSet::Add::kAdded) {
      return "a copy is outside the extent or overlaps";
    }
    const std::uint64_t target_at =
        target_shape.regions[copy.target_region.value()].item_bytes * copy.target_item +
        copy.offset_in_item;
    for (std::uint64_t i = 0; i < copy.length; ++i) {
      std::string& byte = target[copy.target_region.value()].at(target_at + i);
      if (!byte.empty()) {
        return "a byte was written twice";
      }
      byte = source[copy.source_region.value()].at(copy.source_offset + i);
    }
  }
  return {};
}

struct Transfer {
  // Source item -> target item.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pages{{1, 4}, {0, 0}, {5, 2}};
  std::pair<std::uint32_t, std::uint32_t> aux{2, 1};
  std::vector<std::pair<std::uint32_t, std::uint32_t>> states{{3, 4}};
};

std::string run_writer(const Writer& writer, const LayoutShape& source, const LayoutShape& target,
                       const Transfer& transfer, Memory& memory) {
  const auto plan = CopyPlan::make(source, target, writer.part);
  if (!plan) {
    return to_string(plan.error());
  }
  std::vector<ByteCopy> copies;
  std::vector<PageIndex> pages;
  for (const auto& [from, to] : transfer.pages) {
    plan->expand_page(PageIndex(from), PageIndex(to), copies);
    pages.emplace_back(to);
  }
  if (copies.size() != plan->writes_per_page() * transfer.pages.size()) {
    return "writes_per_page is wrong";
  }
  std::uint64_t bytes = 0;
  for (const ByteCopy& copy : copies) {
    bytes += copy.length;
  }
  if (bytes != plan->page_bytes() * transfer.pages.size()) {
    return "page_bytes is wrong";
  }
  if (writer.sends_aux && !plan->expand_aux(transfer.aux.first, transfer.aux.second, copies)) {
    return "no aux";
  }
  std::vector<std::uint32_t> state_slots;
  for (const auto& [from, to] : transfer.states) {
    if (writer.sends_state) {
      state_slots.push_back(to);
      if (!plan->expand_state(from, to, copies)) {
        return "no state";
      }
    }
  }
  const GrantExtent extent(plan->page_slices(), pages, plan->aux_slices(),
                           writer.sends_aux ? transfer.aux.second : std::int64_t{-1},
                           plan->state_slices(), state_slots);
  CoverageSet coverage(extent);
  std::string fault = execute(copies, source_memory(source), target, memory, coverage);
  if (fault.empty() && !coverage.is_full()) {
    fault = "the copies do not fill the extent";
  }
  if (fault.empty() && extent.total_writes_bound() != copies.size()) {
    fault = "total_writes_bound is wrong";
  }
  return fault;
}

// Every granted byte has its right name and no other byte was touched.
std::string check_target(const LayoutShape& target, const Transfer& transfer,
                         const Memory& memory) {
  for (std::size_t region = 0; region < target.regions.size(); ++region) {
    const RegionShape& shape = target.regions[region];
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs = transfer.pages;
    if (shape.kind == RegionKind::kAux) {
      pairs = {transfer.aux};
    } else if (shape.kind == RegionKind::kState) {
      pairs = transfer.states;
    }
    std::vector<std::string> expected(memory[region].size());
    for (const auto& [from, to] : pairs) {
      for (std::uint64_t offset = 0; offset < shape.item_bytes; ++offset) {
        expected[shape.item_bytes * to + offset] = name_of(target, region, from, offset);
      }
    }
    for (std::size_t at = 0; at < expected.size(); ++at) {
      if (memory[region][at] != expected[at]) {
        return fmt::format("region {} byte {}: '{}' instead of '{}'", region, at,
                           memory[region][at], expected[at]);
      }
    }
  }
  return {};
}

// Empty when every target rank gets exactly its bytes.
std::string transfer_fault(const EngineShape& source_engine, const EngineShape& target_engine) {
  const auto sources = ranks_of(source_engine);
  const Transfer transfer;
  for (const LayoutShape& target : ranks_of(target_engine)) {
    const auto writers = writers_for(target, sources);
    if (!writers) {
      return to_string(writers.error());
    }
    Memory memory = empty_memory(target);
    for (const Writer& writer : *writers) {
      const LayoutShape& source = sources[writer.source_index];
      if (const auto mismatch = compare(source, target)) {
        return mismatch->to_text();
      }
      const std::string fault = run_writer(writer, source, target, transfer, memory);
      if (!fault.empty()) {
        return fault;
      }
    }
    const std::string fault = check_target(target, transfer, memory);
    if (!fault.empty()) {
      return fault;
    }
  }
  return {};
}

TEST(CopyPlan, OneToOneIsOneWritePerRegion) {
  EXPECT_EQ(transfer_fault({}, {}), "");
  const auto rank = ranks_of({}).front();
  const auto plan = CopyPlan::make(rank, rank, shared_part(rank, rank));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->writes_per_page(), 8U);
  EXPECT_EQ(plan->page_bytes(), 8U * 64U);
}

TEST(CopyPlan, TwoToTwo) { EXPECT_EQ(transfer_fault({.tp_size = 2}, {.tp_size = 2}), ""); }
TEST(CopyPlan, OneToTwo) { EXPECT_EQ(transfer_fault({}, {.tp_size = 2}), ""); }
TEST(CopyPlan, TwoToOne) { EXPECT_EQ(transfer_fault({.tp_size = 2}, {}), ""); }

TEST(CopyPlan, TensorAndPipelineParallel) {
  const EngineShape grid{.tp_size = 2, .pp_size = 2, .keys_first = true};
  EXPECT_EQ(transfer_fault(grid, grid), "");
  EXPECT_EQ(transfer_fault(grid, {.pp_size = 4, .keys_first = true}), "");
  EXPECT_EQ(transfer_fault({.tp_size = 4, .keys_first = true}, grid), "");
}

TEST(CopyPlan, ReplicatedHeads) {
  EXPECT_EQ(transfer_fault({.tp_size = 8}, {}), "");
  EXPECT_EQ(transfer_fault({.tp_size = 8}, {.tp_size = 2}), "");
  EXPECT_EQ(transfer_fault({}, {.tp_size = 8}), "");
  EXPECT_EQ(transfer_fault({.tp_size = 8}, {.tp_size = 8}), "");
}

RC_GTEST_PROP(CopyPlan, EveryTargetByteIsItsSourceByte, ()) {
  EngineShape source;
  source.total_layers = *rc::gen::inRange(1U, 4U);
  source.total_kv_heads = *rc::gen::inRange(1U, 5U);
  source.page_size_tokens = *rc::gen::inRange(1U, 4U);
  source.head_dim = *rc::gen::inRange(1U, 3U);
  source.dtype = *rc::gen::element(DType::kU8, DType::kF16);
  source.keys_first = *rc::gen::arbitrary<bool>();
  EngineShape target = source;
  for (EngineShape* engine : {&source, &target}) {
    engine->tp_size = *rc::gen::inRange(1U, 6U);
    engine->pp_size = *rc::gen::inRange(1U, source.total_layers + 1);
  }
  RC_ASSERT(transfer_fault(source, target) == "");
}

TEST(CopyPlan, APageOfOneTokenIsOnePieceForAnySlice) {
  const auto source = ranks_of({.page_size_tokens = 1}).front();
  const auto target = ranks_of({.tp_size = 2, .page_size_tokens = 1}).back();
  const auto plan = CopyPlan::make(source, target, shared_part(source, target));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->writes_per_page(), 8U);
}

LayoutShape latent_rank(std::uint32_t heads_end) {
  LayoutShape shape = ranks_of({.total_layers = 1, .has_aux = false, .has_state = false}).front();
  shape.heads.end = heads_end;
  shape.regions = {{RegionKind::kOther, 0, 40, 6, MemoryKind::kHost}};
  return shape;
}

TEST(CopyPlan, ItemsOfUnknownInsideAreCopiedWhole) {
  const auto rank = latent_rank(4);
  const auto plan = CopyPlan::make(rank, rank, shared_part(rank, rank));
  ASSERT_TRUE(plan);
  std::vector<ByteCopy> copies;
  plan->expand_page(PageIndex(2), PageIndex(3), copies);
  EXPECT_EQ(copies, (std::vector<ByteCopy>{{RegionId(0), 80, RegionId(0), 3, 0, 40}}));
  std::vector<ByteCopy> none;
  EXPECT_FALSE(plan->expand_aux(0, 0, none));
  EXPECT_FALSE(plan->expand_state(0, 0, none));
  EXPECT_TRUE(none.empty());
}

TEST(CopyPlan, ItemsOfUnknownInsideAreNotSplitByHeads) {
  const auto plan =
      CopyPlan::make(latent_rank(4), latent_rank(2), shared_part(latent_rank(4), latent_rank(2)));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, FailureCode::kLayoutMismatch);
  EXPECT_THAT(plan.error().what, HasSubstr("can't be split by heads"));
}

TEST(CopyPlan, RefusesPartsAndRegionsThatDoNotFit) {
  const auto rank = ranks_of({}).front();
  EXPECT_FALSE(CopyPlan::make(rank, rank, SharedPart{}));
  EXPECT_FALSE(CopyPlan::make(rank, rank, SharedPart{{0, 5}, {0, 4}}));
  const auto other_order = ranks_of({.keys_first = true}).front();
  EXPECT_THAT(CopyPlan::make(rank, other_order, shared_part(rank, rank)).error().what,
              HasSubstr("region order"));
  auto fewer = rank;
  fewer.regions.pop_back();
  EXPECT_FALSE(CopyPlan::make(rank, fewer, shared_part(rank, rank)));
  EXPECT_FALSE(
      CopyPlan::make(rank, ranks_of({.page_size_tokens = 2}).front(), shared_part(rank, rank)));
}

// What CopyPlan::make() says of a target that differs from its source in one way.
std::string refusal(const std::function<void(LayoutShape&)>& change) {
  const auto source = ranks_of({}).front();
  LayoutShape target = source;
  change(target);
  const auto plan = CopyPlan::make(source, target, shared_part(source, source));
  return plan ? "planned" : plan.error().what;
}

TEST(CopyPlan, RefusesAPartThatOneSideHasNot) {
  EXPECT_EQ(refusal([](LayoutShape&) {}), "planned");
  for (const auto& shrink : std::vector<std::function<void(LayoutShape&)>>{
           [](LayoutShape& s) { s.layers.begin = 1; }, [](LayoutShape& s) { s.layers.end = 3; },
           [](LayoutShape& s) { s.heads.begin = 1; }, [](LayoutShape& s) { s.heads.end = 3; }}) {
    EXPECT_EQ(refusal(shrink), "layers [0, 4) and heads [0, 4) are not a part of both ranks");
  }
}

TEST(CopyPlan, RefusesPagesOfAnotherForm) {
  constexpr const char* kForm = "page size, head_dim or dtype differ";
  EXPECT_EQ(refusal([](LayoutShape& s) { s.page_size_tokens = 2; }), kForm);
  EXPECT_EQ(refusal([](LayoutShape& s) { s.head_dim = 1; }), kForm);
  EXPECT_EQ(refusal([](LayoutShape& s) { s.dtype = DType::kU8; }), kForm);
}

TEST(CopyPlan, RefusesItemsOfAnotherSize) {
  const auto resize = [](RegionKind kind) {
    return [kind](LayoutShape& s) {
      s.regions[static_cast<std::size_t>(find_region(s, kind, 0))].item_bytes += 8;
    };
  };
  EXPECT_EQ(refusal(resize(RegionKind::kState)),
            "item_bytes of state of layer 0: 24 at the source, 32 at the target");
  EXPECT_EQ(refusal(resize(RegionKind::kAux)),
            "item_bytes of aux: 64 at the source, 72 at the target");
  EXPECT_THAT(refusal([](LayoutShape& s) { std::swap(s.regions[0].layer, s.regions[2].layer); }),
              HasSubstr("region order: key of layer 0 at the source, key of layer 1"));
}

TEST(CopyPlan, AuxNeedsARegionOnBothSides) {
  const auto with = ranks_of({}).front();
  const auto without = ranks_of({.has_aux = false}).front();
  for (const auto& [source, target] : {std::pair(with, without), std::pair(without, with)}) {
    const auto plan = CopyPlan::make(source, target, shared_part(source, target));
    ASSERT_TRUE(plan);
    std::vector<ByteCopy> copies;
    EXPECT_FALSE(plan->expand_aux(0, 0, copies));
    EXPECT_TRUE(copies.empty());
    EXPECT_TRUE(plan->aux_slices().empty());
  }
}

TEST(CopyPlan, EveryFieldOfACopyCounts) {
  test::expect_each_field_counts(&ItemCopy::source_region, &ItemCopy::target_region,
                                 &ItemCopy::source_offset, &ItemCopy::target_offset,
                                 &ItemCopy::piece_bytes, &ItemCopy::piece_count,
                                 &ItemCopy::source_stride, &ItemCopy::target_stride);
  test::expect_each_field_counts(&ByteCopy::source_region, &ByteCopy::source_offset,
                                 &ByteCopy::target_region, &ByteCopy::target_item,
                                 &ByteCopy::offset_in_item, &ByteCopy::length);
  test::expect_each_field_counts(&ItemSlice::target_region, &ItemSlice::offset,
                                 &ItemSlice::piece_bytes, &ItemSlice::piece_count,
                                 &ItemSlice::stride);
}

}  // namespace
}  // namespace kvferry::layout
