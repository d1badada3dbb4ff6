// The rank map and the coverage set against versions that go cell by cell and byte by byte, over
// layouts that no regular engine has. Every choice is a value of its own, so that a failing case
// shrinks to a small one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <set>

#include "layout/coverage.h"
#include "layout/rank_map.h"

namespace kvferry::layout {
namespace {

// --- rank map ---

constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kHeads = 4;
using Owners = std::array<std::array<int, kHeads>, kLayers>;  // -1: nobody

LayoutShape rectangle(std::uint32_t layers_begin, std::uint32_t layers, std::uint32_t heads_begin,
                      std::uint32_t heads) {
  LayoutShape shape;
  shape.layers = {layers_begin, std::min(layers_begin + layers, kLayers)};
  shape.heads = {heads_begin, std::min(heads_begin + heads, kHeads)};
  return shape;
}

LayoutShape any_rectangle() {
  const auto below = [](std::uint32_t bound) { return *rc::gen::inRange(0U, bound); };
  return rectangle(below(kLayers), below(kLayers + 1), below(kHeads), below(kHeads + 1));
}

// Each cell goes to the first source that has it.
Owners owners_of(const LayoutShape& target, const std::vector<LayoutShape>& sources) {
  Owners owners;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      owners[layer][head] = -1;
      const auto has = [&](const LayoutShape& shape) {
        return shape.layers.begin <= layer && layer < shape.layers.end &&
               shape.heads.begin <= head && head < shape.heads.end;
      };
      for (int i = static_cast<int>(sources.size()); has(target) && i-- > 0;) {
        if (has(sources[static_cast<std::size_t>(i)])) {
          owners[layer][head] = i;
        }
      }
    }
  }
  return owners;
}

// The smallest part that holds all cells of the source; nothing when it has none, and a failure
// (an empty optional) when it would hold a cell of another.
std::optional<SharedPart> part_of(const Owners& owners, int source) {
  SharedPart part{{kLayers, 0}, {kHeads, 0}};
  std::uint32_t cells = 0;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t head = 0; head < kHeads; ++head) {
      if (owners[layer][head] == source) {
        ++cells;
        part.layers = {std::min(part.layers.begin, layer), std::max(part.layers.end, layer + 1)};
        part.heads = {std::min(part.heads.begin, head), std::max(part.heads.end, head + 1)};
      }
    }
  }
  if (cells == 0) {
    return SharedPart{};
  }
  const std::uint32_t area =
      (part.layers.end - part.layers.begin) * (part.heads.end - part.heads.begin);
  return area == cells ? std::optional(part) : std::nullopt;
}

RC_GTEST_PROP(RankMap, AgreesWithAMapOfCellsForAnyRanks, ()) {
  const LayoutShape target = any_rectangle();
  std::vector<LayoutShape> sources;
  for (std::uint32_t count = *rc::gen::inRange(0U, 5U); count > 0; --count) {
    sources.push_back(any_rectangle());
  }
  const auto writers = writers_for(target, sources);
  const Owners owners = owners_of(target, sources);
  std::vector<std::pair<std::uint32_t, SharedPart>> expected;
  bool regular = true;
  for (std::uint32_t i = 0; i < sources.size(); ++i) {
    const auto part = part_of(owners, static_cast<int>(i));
    regular = regular && part.has_value();
    if (part && !part->is_empty()) {
      expected.emplace_back(i, *part);
    }
  }
  bool complete = true;
  for (std::uint32_t layer = target.layers.begin; layer < target.layers.end; ++layer) {
    for (std::uint32_t head = target.heads.begin; head < target.heads.end; ++head) {
      complete = complete && owners[layer][head] >= 0;
    }
  }
  RC_CLASSIFY(regular && complete && expected.size() > 1, "several writers");
  RC_ASSERT(writers.has_value() == (regular && complete));
  if (!writers) {
    RC_ASSERT(writers.error().code == FailureCode::kLayoutMismatch);
    return;
  }
  RC_ASSERT(writers->size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    RC_ASSERT((*writers)[i].source_index == expected[i].first);
    RC_ASSERT((*writers)[i].part.layers == expected[i].second.layers);
    RC_ASSERT((*writers)[i].part.heads == expected[i].second.heads);
  }
}

// --- coverage ---

constexpr std::uint64_t kRangedBytes = 24;
constexpr std::uint32_t kRangedItems = 4;

struct Range {
  std::uint32_t region;
  std::uint32_t item;
  std::uint64_t offset;
  std::uint64_t length;
};

void showValue(const Range& range, std::ostream& out) {
  out << "region " << range.region << " item " << range.item << " [" << range.offset << ", "
      << range.offset + range.length << ")";
}

rc::Gen<Range> any_range() {
  return rc::gen::build<Range>(
      rc::gen::set(&Range::region, rc::gen::inRange(0U, 4U)),
      rc::gen::set(&Range::item, rc::gen::inRange(0U, kRangedItems)),
      rc::gen::set(&Range::offset, rc::gen::inRange<std::uint64_t>(0, kRangedBytes + 2)),
      rc::gen::set(&Range::length, rc::gen::inRange<std::uint64_t>(0, kRangedBytes + 2)));
}

// Slices of one region that don't overlap: cut one after the other from the front of the item.
std::vector<ItemSlice> any_slices(std::uint32_t region) {
  std::vector<ItemSlice> slices;
  std::uint64_t at = 0;
  for (std::uint32_t count = *rc::gen::inRange(1U, 4U); count > 0; --count) {
    ItemSlice slice;
    slice.target_region = RegionId(region);
    slice.offset = at + *rc::gen::inRange<std::uint64_t>(0, 4);
    slice.piece_bytes = *rc::gen::inRange<std::uint64_t>(0, 6);
    slice.piece_count = *rc::gen::inRange(1U, 4U);
    slice.stride = slice.piece_bytes + *rc::gen::inRange<std::uint64_t>(0, 3);
    const std::uint64_t end = slice.offset + slice.piece_count * slice.stride;
    if (end > kRangedBytes) {
      break;
    }
    slices.push_back(slice);
    at = end;
  }
  return slices;
}

// How a byte of an item stands; bytes that are not in the map are nobody's.
using ByteMap = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, bool>;

void allow(ByteMap& bytes, const std::vector<ItemSlice>& slices, std::uint32_t item) {
  for (const ItemSlice& slice : slices) {
    for (std::uint32_t piece = 0; piece < slice.piece_count; ++piece) {
      for (std::uint64_t i = 0; i < slice.piece_bytes; ++i) {
        bytes[{slice.target_region.value(), item, slice.offset + piece * slice.stride + i}] = false;
      }
    }
  }
}

CoverageSet::Add land(ByteMap& bytes, const Range& range) {
  bool landed = false;
  for (std::uint64_t at = range.offset; at < range.offset + range.length; ++at) {
    const auto found = bytes.find({range.region, range.item, at});
    if (found == bytes.end()) {
      return CoverageSet::Add::kOutside;
    }
    landed = landed || found->second;
  }
  if (range.length == 0) {
    return CoverageSet::Add::kOutside;
  }
  if (landed) {
    return CoverageSet::Add::kOverlap;
  }
  for (std::uint64_t at = range.offset; at < range.offset + range.length; ++at) {
    bytes[{range.region, range.item, at}] = true;
  }
  return CoverageSet::Add::kAdded;
}

RC_GTEST_PROP(Coverage, AgreesWithAMapOfBytesForAnySlices, ()) {
  std::vector<ItemSlice> page_slices = any_slices(0);
  const std::vector<ItemSlice> second = any_slices(1);
  page_slices.insert(page_slices.end(), second.begin(), second.end());
  const std::vector<ItemSlice> aux_slices = any_slices(2);
  // Each page once: drawn with repetitions, since a list of all different ones may not be found.
  auto pages = *rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange(0U, kRangedItems));
  std::set<std::uint32_t> seen;
  std::erase_if(pages, [&](std::uint32_t page) { return !seen.insert(page).second; });
  const std::int64_t aux_slot = *rc::gen::inRange<std::int64_t>(-1, kRangedItems);
  ByteMap bytes;
  std::vector<PageIndex> page_list;
  for (const std::uint32_t page : pages) {
    allow(bytes, page_slices, page);
    page_list.emplace_back(page);
  }
  if (aux_slot >= 0) {
    allow(bytes, aux_slices, static_cast<std::uint32_t>(aux_slot));
  }
  const GrantExtent extent(page_slices, page_list, aux_slices, aux_slot, {}, {});
  RC_ASSERT(extent.total_bytes() == bytes.size());
  CoverageSet coverage(extent);
  std::uint64_t landed = 0;
  for (const Range& range : *rc::gen::container<std::vector<Range>>(any_range())) {
    const bool full_before = landed == bytes.size();
    const auto expected = land(bytes, range);
    RC_ASSERT(extent.contains(RegionId(range.region), range.item, range.offset, range.length) ==
              (expected != CoverageSet::Add::kOutside));
    RC_ASSERT(coverage.add(RegionId(range.region), range.item, range.offset, range.length) ==
              expected);
    RC_ASSERT(!full_before || expected != CoverageSet::Add::kAdded);
    landed += expected == CoverageSet::Add::kAdded ? range.length : 0;
    RC_ASSERT(coverage.covered_bytes() == landed);
    RC_ASSERT(coverage.is_full() == (landed == bytes.size()));
  }
}

}  // namespace
}  // namespace kvferry::layout
