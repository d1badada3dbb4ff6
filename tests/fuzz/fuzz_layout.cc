// A peer's layout, from the check of its shape to the bytes that land. An unsound shape is refused
// (by a second opinion, field by field); ranks that pass and match have writers that cover the
// target, whose plans write each byte of a page exactly once, and a coverage set that is full
// exactly then.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "layout/copy_plan.h"
#include "layout/coverage.h"
#include "layout/kv_layout.h"
#include "layout/rank_map.h"
#include "layout_input.h"
#include "target.h"

namespace kvferry::fuzz {
namespace {

using layout::CopyPlan;
using layout::CoverageSet;
using layout::GrantExtent;

// Bytes of one rank's page over which they are no longer counted one by one.
constexpr std::uint64_t kMostCountedBytes = 1U << 14;
constexpr std::uint32_t kSourcePage = 0;
constexpr std::uint32_t kTargetPage = 0;

std::uint64_t page_bytes(const LayoutShape& shape) {
  std::uint64_t bytes = 0;
  for (const RegionShape& region : shape.regions) {
    if (holds_pages(region.kind)) {
      bytes += std::min(region.item_bytes, kMostCountedBytes + 1);
    }
  }
  return bytes;
}

// How often each byte of the target's items was written.
using Tally = std::map<std::tuple<std::uint32_t, std::uint32_t>, std::vector<std::uint8_t>>;

void add_to(Tally& tally, const LayoutShape& target, const layout::ByteCopy& copy) {
  const std::uint64_t item_bytes = target.regions.at(copy.target_region.value()).item_bytes;
  require(copy.offset_in_item + copy.length <= item_bytes, "S8: a write stays within its item");
  auto& bytes = tally[{copy.target_region.value(), copy.target_item}];
  bytes.resize(item_bytes);
  for (std::uint64_t i = 0; i < copy.length; ++i) {
    require(bytes[copy.offset_in_item + i]++ == 0, "no byte is written twice");
  }
}

// Lands the copies in an order of the input's choice.
void land(Input& input, std::vector<layout::ByteCopy> copies, const GrantExtent& extent) {
  CoverageSet coverage(extent);
  std::uint64_t bytes = 0;
  while (!copies.empty()) {
    require(!coverage.is_full(), "coverage is not full before the last byte");
    const std::size_t at = input.byte() % copies.size();
    const layout::ByteCopy copy = copies[at];
    copies[at] = copies.back();
    copies.pop_back();
    require(extent.contains(copy.target_region, copy.target_item, copy.offset_in_item, copy.length),
            "what the plan writes is granted");
    const auto add = [&] {
      return coverage.add(copy.target_region, copy.target_item, copy.offset_in_item, copy.length);
    };
    require(add() == CoverageSet::Add::kAdded, "a first landing is added");
    require(add() == CoverageSet::Add::kOverlap, "a second landing is an overlap");
    bytes += copy.length;
    require(coverage.covered_bytes() == bytes, "covered bytes are those that landed");
  }
  require(coverage.is_full(), "coverage is full after the last byte");
}

void run_writer(Input& input, const LayoutShape& source, const LayoutShape& target,
                const layout::Writer& writer, Tally& tally) {
  const auto plan = CopyPlan::make(source, target, writer.part);
  if (!plan) {
    const bool unsplittable = std::ranges::any_of(target.regions, [](const RegionShape& region) {
      return region.kind == RegionKind::kOther;
    });
    require(unsplittable, "only what can't be split keeps a matching pair from a plan");
    require(plan.error().code == FailureCode::kLayoutMismatch, "that is a mismatch");
    return;
  }
  std::vector<layout::ByteCopy> copies;
  plan->expand_page(PageIndex(kSourcePage), PageIndex(kTargetPage), copies);
  require(copies.size() == plan->writes_per_page(), "writes_per_page is right");
  std::vector<layout::ItemSlice> aux;
  std::vector<layout::ItemSlice> state;
  if (writer.sends_aux && plan->expand_aux(1, 1, copies)) {
    aux = plan->aux_slices();
  }
  if (writer.sends_state && plan->expand_state(0, 1, copies)) {
    state = plan->state_slices();
  }
  for (const layout::ByteCopy& copy : copies) {
    const RegionShape& from = source.regions.at(copy.source_region.value());
    require(copy.source_offset + copy.length <= from.item_bytes * from.item_count ||
                !holds_pages(from.kind),
            "a read stays within its region");
    add_to(tally, target, copy);
  }
  const GrantExtent extent(plan->page_slices(), {PageIndex(kTargetPage)}, aux, 1, state, {1});
  require(extent.total_writes_bound() == copies.size(), "total_writes_bound is right");
  land(input, std::move(copies), extent);
}

void run_target(Input& input, const std::vector<LayoutShape>& sources, const LayoutShape& target) {
  const auto writers = layout::writers_for(target, sources);
  if (!writers) {
    require(writers.error().code == FailureCode::kLayoutMismatch, "no writers is a mismatch");
    return;
  }
  Tally tally;
  bool planned = true;
  int aux_writers = 0;
  for (const layout::Writer& writer : *writers) {
    const LayoutShape& source = sources.at(writer.source_index);
    if (layout::compare(target, source)) {
      return;
    }
    planned = planned && CopyPlan::make(source, target, writer.part).has_value();
    aux_writers += writer.sends_aux ? 1 : 0;
    run_writer(input, source, target, writer, tally);
  }
  const bool dummy =
      target.layers.begin == target.layers.end || target.heads.begin == target.heads.end;
  require(aux_writers == (dummy ? 0 : 1), "aux comes from exactly one writer");
  for (std::uint32_t region = 0; planned && !dummy && region < target.regions.size(); ++region) {
    const RegionKind kind = target.regions[region].kind;
    if (!holds_pages(kind)) {
      continue;
    }
    const auto& bytes = tally[{region, kTargetPage}];
    require(bytes.size() == target.regions[region].item_bytes &&
                std::ranges::all_of(bytes, [](std::uint8_t times) { return times == 1; }),
            "each byte of a page is written exactly once");
  }
}

void run(Input input) {
  const ModelSizes sizes = read_sizes(input);
  std::vector<LayoutShape> sources = read_ranks(input, sizes);
  std::vector<LayoutShape> targets = read_ranks(input, sizes);
  damage(input, sources[input.byte() % sources.size()]);
  damage(input, targets.front());
  bool countable = true;
  for (const auto* ranks : {&sources, &targets}) {
    for (const LayoutShape& shape : *ranks) {
      const Status sound = layout::check_shape(shape);
      require(sound.has_value() == is_sound(shape), "unsound shapes are refused, and only they");
      if (!sound) {
        require(sound.error().code == FailureCode::kLayoutMismatch && !sound.error().what.empty(),
                "a refusal says why");
        return;
      }
      require(!layout::compare(shape, shape), "a shape matches itself");
      countable = countable && page_bytes(shape) <= kMostCountedBytes;
    }
  }
  for (const LayoutShape& target : targets) {
    for (const LayoutShape& source : sources) {
      require(layout::compare(source, target).has_value() ==
                  layout::compare(target, source).has_value(),
              "a mismatch is one on both sides");
    }
    if (countable) {
      run_target(input, sources, target);
    }
  }
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::run(kvferry::fuzz::Input({data, size}));
  return 0;
}
