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

GrantExtent::GrantExtent() : held_(std::make_shared<const Contents>()) {}

GrantExtent::GrantExtent(std::vector<ItemSlice> page_slices, std::vector<PageIndex> pages,
                         std::vector<ItemSlice> aux_slices, std::int64_t aux_slot,
                         std::vector<ItemSlice> state_slices,
                         std::vector<std::uint32_t> state_slots) {
  const auto made = std::make_shared<Contents>();
  held_ = made;
  made->pages = std::move(pages);
  const std::size_t slice_count = page_slices.size() + aux_slices.size() + state_slices.size();
  made->slices.reserve(slice_count);
  made->rules.reserve(slice_count);
  made->lists.reserve(3);
  const auto page_at = [&](std::size_t position) { return made->pages[position].value(); };
  made->add_rules(std::move(page_slices), made->pages.size(), page_at);
  if (!made->lists.empty()) {
    std::uint64_t distinct = 0;
    for (const ItemRun& run : made->lists.front().runs) distinct += run.count;
    // A page that stands twice has one place, its first.
    made->next_page_is_next_place = distinct == made->pages.size();
  }
  if (aux_slot >= 0) {
    const auto slot = [&](std::size_t) { return static_cast<std::uint32_t>(aux_slot); };
    made->add_rules(std::move(aux_slices), 1, slot);
  }
  const auto state_at = [&](std::size_t position) { return state_slots[position]; };
  made->add_rules(std::move(state_slices), state_slots.size(), state_at);
  std::sort(made->rules.begin(), made->rules.end(),
            [](const RegionRule& a, const RegionRule& b) { return a.region < b.region; });
  for (RegionRule& rule : made->rules) {
    rule.first_place = made->place_count;
    made->place_count += made->lists[rule.list].item_count;
  }
}

template <typename ItemAt>
GrantExtent::ItemRuns GrantExtent::make_runs(std::size_t count, const ItemAt& item_at) {
  ItemRuns runs;
  const auto add = [&](std::uint32_t position) {
    const std::uint32_t item = item_at(position);
    if (!runs.empty()) {
      ItemRun& last = runs.back();
      if (item - last.first < last.count) {
        return;
      }
      if (item - last.first == last.count && position == last.position + last.count) {
        ++last.count;
        return;
      }
    }
    runs.push_back({item, 1, position});
  };
  bool is_sorted = true;
  for (std::size_t i = 1; i < count; ++i) {
    is_sorted = is_sorted && item_at(i - 1) < item_at(i);
  }
  if (is_sorted) {
    for (std::uint32_t position = 0; position < count; ++position) {
      add(position);
    }
    return runs;
  }
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return item_at(a) < item_at(b); });
  std::ranges::for_each(order, add);
  return runs;
}

template <typename ItemAt>
void GrantExtent::Contents::add_rules(std::vector<ItemSlice> added, std::size_t item_count,
                                      const ItemAt& item_at) {
  if (added.empty() || item_count == 0) {
    return;
  }
  std::sort(added.begin(), added.end(), [](const ItemSlice& a, const ItemSlice& b) {
    return a.target_region != b.target_region ? a.target_region < b.target_region
                                              : a.offset < b.offset;
  });
  for (const ItemSlice& slice : added) {
    if (slice_bytes(slice) == 0) {
      continue;
    }
    if (rules.empty() || rules.back().region != slice.target_region ||
        rules.back().list != lists.size()) {
      rules.push_back(
          {slice.target_region, static_cast<std::uint32_t>(slices.size()), 0, 0, lists.size(), 0});
    }
    RegionRule& rule = rules.back();
    slices.push_back(simplified(slice));
    ++rule.slice_count;
    rule.item_bytes += slice_bytes(slice);
    total_bytes += slice_bytes(slice) * item_count;
    // Pieces that touch at the target may still come one by one: they lie apart at the source.
    total_writes += std::uint64_t{slice.piece_count} * item_count;
  }
  lists.push_back({make_runs(item_count, item_at), item_count});
}

const GrantExtent::RegionRule* GrantExtent::find_rule(RegionId region) const {
  const std::vector<RegionRule>& rules = held_->rules;
  const auto found = std::lower_bound(
      rules.begin(), rules.end(), region,
      [](const RegionRule& rule, RegionId wanted) { return rule.region < wanted; });
  return found != rules.end() && found->region == region ? &*found : nullptr;
}

std::optional<std::uint32_t> GrantExtent::find_item(const RegionRule& rule,
                                                    std::uint32_t item) const {
  const ItemRuns& runs = held_->lists[rule.list].runs;
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

bool GrantExtent::covers(const RegionRule& rule, std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t end = offset + length;
  if (length == 0 || end < offset) {
    return false;
  }
  const std::span slices(held_->slices.data() + rule.first_slice, rule.slice_count);
  // Hops from piece to piece; the usual range lies in the first one.
  for (std::uint64_t at = offset; at < end;) {
    std::uint64_t next = 0;
    for (const ItemSlice& slice : slices) {
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
  const Contents& held = *held_;
  const RegionRule* rule = last.rule < held.rules.size() && held.rules[last.rule].region == region
                               ? &held.rules[last.rule]
                               : find_rule(region);
  if (rule == nullptr || !covers(*rule, offset, length)) {
    return std::nullopt;
  }
  last.rule = static_cast<std::size_t>(rule - held.rules.data());
  const std::uint32_t next = last.position + 1;
  const bool is_next = held.next_page_is_next_place && rule->list == 0 &&
                       next < held.pages.size() && held.pages[next].value() == item;
  const auto position = is_next ? std::optional(next) : find_item(*rule, item);
  if (!position) {
    return std::nullopt;
  }
  last.position = *position;
  return rule->first_place + *position;
}

CoverageSet::CoverageSet(GrantExtent extent)
    : extent_(std::move(extent)), whole_(extent_.place_count()) {}

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
  const GrantExtent::RegionRule* rule = extent_.find_rule(region);
  if (rule == nullptr || !extent_.covers(*rule, offset, length)) {
    return Add::kOutside;
  }
  const auto position = extent_.find_item(*rule, item);
  if (!position) {
    return Add::kOutside;
  }
  const std::uint64_t place = rule->first_place + *position;
  // After cover_all(), too, which keeps no places.
  if (is_full() || whole_[place]) {
    return Add::kOverlap;
  }
  bool is_whole = length == rule->item_bytes;
  if (is_whole && partial_.contains(place)) {
    return Add::kOverlap;
  }
  if (!is_whole) {
    Partial& partial = partial_[place];
    if (!insert(partial.intervals, {offset, offset + length})) {
      return Add::kOverlap;
    }
    partial.bytes += length;
    is_whole = partial.bytes == rule->item_bytes;
  }
  if (is_whole) {
    partial_.erase(place);
    whole_[place] = true;
  }
  covered_bytes_ += length;
  return Add::kAdded;
}

}  // namespace kvferry::layout
