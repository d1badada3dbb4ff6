// What one writer may write under one grant (GrantExtent), and what of it has landed (CoverageSet).
// Pure. Success needs a full set (rule 10): "the last chunk was seen" is not enough.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/ids.h"
#include "layout/copy_plan.h"

namespace kvferry::layout {

// Immutable once made, so that a transport's threads may read it without a lock. Copies share what
// they hold and cost next to nothing.
class GrantExtent {
 public:
  GrantExtent();
  // pages: the whole page list of the grant, every one of which this writer fills with page_slices.
  // aux_slot -1 and empty state_slots: none from this writer. A list with an item twice can never
  // be covered: the second landing is an overlap.
  GrantExtent(std::vector<ItemSlice> page_slices, std::vector<PageIndex> pages,
              std::vector<ItemSlice> aux_slices, std::int64_t aux_slot,
              std::vector<ItemSlice> state_slices, std::vector<std::uint32_t> state_slots);

  // Whether every byte of [offset, offset + length) of the item is this writer's under this grant.
  // Overflow of offset + length is outside, and so is a write of no bytes.
  bool contains(RegionId region, std::uint32_t item, std::uint64_t offset,
                std::uint64_t length) const;
  // As contains(), and the place of the item among all items of the grant, counted over its
  // regions: below place_count(), and the same for the same item. `last` makes it cheap to go
  // through the pages in the grant's order: give the same one to successive calls.
  struct LastPlace {
    std::size_t rule = 0;
    std::uint32_t position = 0;
  };
  std::optional<std::uint64_t> place_of(RegionId region, std::uint32_t item, std::uint64_t offset,
                                        std::uint64_t length, LastPlace& last) const;
  std::uint64_t place_count() const { return held_->place_count; }
  std::uint64_t total_bytes() const { return held_->total_bytes; }
  std::uint64_t total_writes_bound() const { return held_->total_writes; }  // pieces in all
  std::span<const PageIndex> pages() const { return held_->pages; }

 private:
  friend class CoverageSet;
  // Consecutive item numbers at consecutive positions of their list. Page lists are mostly long
  // runs, and the regions share one list, so that a grant costs little more than its page list.
  struct ItemRun {
    std::uint32_t first;
    std::uint32_t count;
    std::uint32_t position;
  };
  using ItemRuns = std::vector<ItemRun>;  // sorted by first; repeated items keep one position
  struct RegionRule {
    RegionId region;
    std::uint32_t first_slice = 0;  // index into slices, sorted by offset from there on
    std::uint32_t slice_count = 0;
    std::uint64_t item_bytes = 0;  // of all slices together
    std::size_t list = 0;          // index into lists
    std::uint64_t first_place = 0;
  };
  struct ItemList {
    ItemRuns runs;
    std::uint64_t item_count = 0;
  };
  struct Contents {
    std::vector<RegionRule> rules;  // sorted by region
    std::vector<ItemSlice> slices;
    std::vector<ItemList> lists;  // pages first, if there are any
    std::vector<PageIndex> pages;
    bool next_page_is_next_place = false;  // no page stands twice
    std::uint64_t place_count = 0;
    std::uint64_t total_bytes = 0;
    std::uint64_t total_writes = 0;

    // item_at(position): the item's number.
    template <typename ItemAt>
    void add_rules(std::vector<ItemSlice> added, std::size_t item_count, const ItemAt& item_at);
  };

  template <typename ItemAt>
  static ItemRuns make_runs(std::size_t count, const ItemAt& item_at);
  const RegionRule* find_rule(RegionId region) const;
  // Position of the item in the rule's list, or nothing.
  std::optional<std::uint32_t> find_item(const RegionRule& rule, std::uint32_t item) const;
  bool covers(const RegionRule& rule, std::uint64_t offset, std::uint64_t length) const;

  std::shared_ptr<const Contents> held_;
};

class CoverageSet {
 public:
  explicit CoverageSet(GrantExtent extent);

  enum class Add : std::uint8_t { kAdded, kOverlap, kOutside };
  // kOverlap: some byte was here already; nothing is added then.
  Add add(RegionId region, std::uint32_t item, std::uint64_t offset, std::uint64_t length);

  // For transports whose target sees no single landing: the writer's Done vouches for every byte.
  void cover_all() { covered_bytes_ = extent_.total_bytes(); }

  std::uint64_t covered_bytes() const { return covered_bytes_; }
  bool is_full() const { return covered_bytes_ == extent_.total_bytes(); }

 private:
  struct Interval {
    std::uint64_t begin;
    std::uint64_t end;
  };
  // An item of which some bytes landed.
  struct Partial {
    std::vector<Interval> intervals;  // sorted, disjoint, not touching
    std::uint64_t bytes = 0;
  };
  // Whether the range touches none of the intervals; inserts it when it does not.
  static bool insert(std::vector<Interval>& intervals, Interval added);

  GrantExtent extent_;
  std::vector<bool> whole_;  // by place: all of the item's bytes landed
  boost::unordered_flat_map<std::uint64_t, Partial> partial_;  // by place
  std::uint64_t covered_bytes_ = 0;
};

}  // namespace kvferry::layout
