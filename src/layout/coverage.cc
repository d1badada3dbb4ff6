#include "layout/coverage.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace kvferry::layout {
namespace {

// A slice whose pieces touch is one piece, which the fast path needs.
ItemSlice simplified(ItemSlice slice) {
  if (slice.piece_count > 1 && slice.stride == slice.piece_bytes) {
    slice.piece_bytes *= slice.piece_count;
    slice.piece_count = 1;
  }
  if (slice.piece_count == 1) {
    slice.stride = 0;
  }
  return slice;
}

std::uint64_t slice_bytes(const ItemSlice& slice) { return slice.piece_bytes * slice.piece_count; }

// End of the slice's piece that holds the byte at offset; 0 when none does.
std::uint64_t piece_end(const ItemSlice& slice, std::uint64_t offset) {
  if (offset < slice.offset) {
    return 0;
  }
  const std::uint64_t within = offset - slice.offset;
  const std::uint64_t piece = slice.stride > 0 ? within / slice.stride : 0;
  if (piece >= slice.piece_count) {
    return 0;
  }
  const std::uint64_t end = slice.offset + piece * slice.stride + slice.piece_bytes;
  return offset < end ? end : 0;
}

}  // namespace

GrantExtent::GrantExtent(std::vector<ItemSlice> page_slices, std::vector<PageIndex> pages,
                         std::vector<ItemSlice> aux_slices, std::int64_t aux_slot,
                         std::vector<ItemSlice> state_slices,
                         std::vector<std::uint32_t> state_slots)
    : pages_(std::move(pages)) {
  std::vector<std::uint32_t> items;
  items.reserve(pages_.size());
  for (const PageIndex page : pages_) {
    items.push_back(page.value());
  }
  add_rules(std::move(page_slices), items);
  if (!lists_.empty()) {
    std::uint64_t distinct = 0;
    for (const ItemRun& run : lists_.front().runs) distinct += run.count;
    // A page that stands twice has one place, its first.
    next_page_is_next_place_ = distinct == pages_.size();
  }
  if (aux_slot >= 0) {
    const auto slot = static_cast<std::uint32_t>(aux_slot);
    add_rules(std::move(aux_slices), {&slot, 1});
  }
  add_rules(std::move(state_slices), state_slots);
  std::sort(rules_.begin(), rules_.end(),
            [](const RegionRule& a, const RegionRule& b) { return a.region < b.region; });
  for (RegionRule& rule : rules_) {
    rule.first_place = place_count_;
    place_count_ += lists_[rule.list].item_count;
  }
}

GrantExtent::ItemRuns GrantExtent::make_runs(std::span<const std::uint32_t> items) {
  std::vector<std::uint32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return items[a] < items[b]; });
  ItemRuns runs;
  for (const std::uint32_t position : order) {
    const std::uint32_t item = items[position];
    if (!runs.empty()) {
      ItemRun& last = runs.back();
      if (item - last.first < last.count) {
        continue;
      }
      if (item - last.first == last.count && position == last.position + last.count) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({item, 1, position});
  }
  return runs;
}

void GrantExtent::add_rules(std::vector<ItemSlice> slices, std::span<const std::uint32_t> items) {
  if (slices.empty() || items.empty()) {
    return;
  }
  std::sort(slices.begin(), slices.end(), [](const ItemSlice& a, const ItemSlice& b) {
    return a.target_region != b.target_region ? a.target_region < b.target_region
                                              : a.offset < b.offset;
  });
  for (const ItemSlice& slice : slices) {
    if (slice_bytes(slice) == 0) {
      continue;
    }
    if (rules_.empty() || rules_.back().region != slice.target_region ||
        rules_.back().list != lists_.size()) {
      rules_.push_back({slice.target_region, {}, 0, lists_.size()});
    }
    RegionRule& rule = rules_.back();
    rule.slices.push_back(simplified(slice));
    rule.item_bytes += slice_bytes(slice);
    total_bytes_ += slice_bytes(slice) * items.size();
    // Pieces that touch at the target may still come one by one: they lie apart at the source.
    total_writes_ += std::uint64_t{slice.piece_count} * items.size();
  }
  lists_.push_back({make_runs(items), items.size()});
}

const GrantExtent::RegionRule* GrantExtent::find_rule(RegionId region) const {
  const auto found = std::lower_bound(
      rules_.begin(), rules_.end(), region,
      [](const RegionRule& rule, RegionId wanted) { return rule.region < wanted; });
  return found != rules_.end() && found->region == region ? &*found : nullptr;
}

std::optional<std::uint32_t> GrantExtent::find_item(const RegionRule& rule,
                                                    std::uint32_t item) const {
  const ItemRuns& runs = lists_[rule.list].runs;
  if (runs.empty()) {
    return std::nullopt;
  }
  // The last run that begins at or before the item. Without branches on what is compared: pages are
  // scattered, so that each of them would be guessed wrong half of the time.
  const ItemRun* run = runs.data();
  for (std::size_t left = runs.size(); left > 1;) {
    const std::size_t half = left / 2;
    run += run[half].first <= item ? half : 0;
    left -= half;
  }
  const bool found = run->first <= item && item - run->first < run->count;
  return found ? std::optional(run->position + (item - run->first)) : std::nullopt;
}

bool GrantExtent::covers(const RegionRule& rule, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t end = offset + length;
  if (length == 0 || end < offset) {
    return false;
  }
  // Hops from piece to piece; the usual range lies in the first one.
  for (std::uint64_t at = offset; at < end;) {
    std::uint64_t next = 0;
    for (const ItemSlice& slice : rule.slices) {
      next = std::max(next, piece_end(slice, at));
    }
    if (next == 0) {
      return false;
    }
    at = next;
  }
  return true;
}

bool GrantExtent::contains(RegionId region, std::uint32_t item, std::uint64_t offset,
                           std::uint64_t length) const {
  LastPlace none;
  return place_of(region, item, offset, length, none).has_value();
}

std::optional<std::uint64_t> GrantExtent::place_of(RegionId region, std::uint32_t item,
                                                   std::uint64_t offset, std::uint64_t length,
                                                   LastPlace& last) const {
  const RegionRule* rule = last.rule < rules_.size() && rules_[last.rule].region == region
                               ? &rules_[last.rule]
                               : find_rule(region);
  if (rule == nullptr || !covers(*rule, offset, length)) {
    return std::nullopt;
  }
  last.rule = static_cast<std::size_t>(rule - rules_.data());
  const std::uint32_t next = last.position + 1;
  const bool is_next = next_page_is_next_place_ && rule->list == 0 && next < pages_.size() &&
                       pages_[next].value() == item;
  const auto position = is_next ? std::optional(next) : find_item(*rule, item);
  if (!position) {
    return std::nullopt;
  }
  last.position = *position;
  return rule->first_place + *position;
}

std::uint64_t GrantExtent::total_bytes() const { return total_bytes_; }
std::uint64_t GrantExtent::total_writes_bound() const { return total_writes_; }
std::span<const PageIndex> GrantExtent::pages() const { return pages_; }

CoverageSet::CoverageSet(const GrantExtent& extent)
    : extent_(&extent), covers_(extent.rules_.size()) {}

bool CoverageSet::insert(std::vector<Interval>& intervals, Interval added) {
  // First interval that ends after the new one begins.
  auto next = std::lower_bound(
      intervals.begin(), intervals.end(), added.begin,
      [](const Interval& interval, std::uint64_t begin) { return interval.end <= begin; });
  if (next != intervals.end() && next->begin < added.end) {
    return false;
  }
  const bool joins_next = next != intervals.end() && next->begin == added.end;
  const bool joins_previous = next != intervals.begin() && std::prev(next)->end == added.begin;
  if (joins_previous && joins_next) {
    std::prev(next)->end = next->end;
    intervals.erase(next);
  } else if (joins_previous) {
    std::prev(next)->end = added.end;
  } else if (joins_next) {
    next->begin = added.begin;
  } else {
    intervals.insert(next, added);
  }
  return true;
}

CoverageSet::Add CoverageSet::add(RegionId region, std::uint32_t item, std::uint64_t offset,
                                  std::uint64_t length) {
  const GrantExtent::RegionRule* rule = extent_->find_rule(region);
  if (rule == nullptr || !GrantExtent::covers(*rule, offset, length)) {
    return Add::kOutside;
  }
  const auto position = extent_->find_item(*rule, item);
  if (!position) {
    return Add::kOutside;
  }
  if (is_full()) {
    return Add::kOverlap;  // also after cover_all(), which keeps no places
  }
  RegionCover& cover = covers_[static_cast<std::size_t>(rule - extent_->rules_.data())];
  if (*position < cover.whole.size() && cover.whole[*position]) {
    return Add::kOverlap;
  }
  bool is_whole = length == rule->item_bytes;
  if (is_whole && cover.partial.contains(*position)) {
    return Add::kOverlap;
  }
  if (!is_whole) {
    Partial& partial = cover.partial[*position];
    if (!insert(partial.intervals, {offset, offset + length})) {
      return Add::kOverlap;
    }
    partial.bytes += length;
    is_whole = partial.bytes == rule->item_bytes;
  }
  if (is_whole) {
    cover.partial.erase(*position);
    if (cover.whole.size() <= *position) {
      cover.whole.resize(*position + 1);
    }
    cover.whole[*position] = true;
  }
  covered_bytes_ += length;
  return Add::kAdded;
}

}  // namespace kvferry::layout
