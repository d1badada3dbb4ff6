// The writes that carry a source rank's part of a page to a target rank. Made once per session;
// then every chunk is expanded from it by arithmetic. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/ids.h"
#include "kvferry/status.h"
#include "layout/rank_map.h"

namespace kvferry::layout {

// piece_count pieces of piece_bytes each, at equal strides in the source's and the target's item.
struct ItemCopy {
  RegionId source_region;
  RegionId target_region;
  std::uint64_t source_offset = 0;  // within the item
  std::uint64_t target_offset = 0;
  std::uint64_t piece_bytes = 0;
  std::uint32_t piece_count = 1;
  std::uint64_t source_stride = 0;  // bytes between pieces; unused with one piece
  std::uint64_t target_stride = 0;
  friend bool operator==(const ItemCopy&, const ItemCopy&) = default;
};

// One contiguous copy, before it gets a ticket and a slot.
struct ByteCopy {
  RegionId source_region;
  std::uint64_t source_offset = 0;  // within the region
  RegionId target_region;
  std::uint32_t target_item = 0;
  std::uint64_t offset_in_item = 0;
  std::uint64_t length = 0;
  friend bool operator==(const ByteCopy&, const ByteCopy&) = default;
};

// A half-open byte range that a writer may write in each item of a target region (strided as
// above).
struct ItemSlice {
  RegionId target_region;
  std::uint64_t offset = 0;
  std::uint64_t piece_bytes = 0;
  std::uint32_t piece_count = 1;
  std::uint64_t stride = 0;
  friend bool operator==(const ItemSlice&, const ItemSlice&) = default;
};

class CopyPlan {
 public:
  // part must not be empty. When all heads are shared the item is one piece; else one piece per
  // token. Contiguous pieces are merged.
  static Result<CopyPlan> make(const LayoutShape& source, const LayoutShape& target,
                               const SharedPart& part);

  // Appends the copies of source page -> target page, in region order.
  void expand_page(PageIndex source, PageIndex target, std::vector<ByteCopy>& out) const;
  // Aux slot and state slots; false when a side has no such region.
  bool expand_aux(std::uint32_t source_slot, std::uint32_t target_slot,
                  std::vector<ByteCopy>& out) const;
  bool expand_state(std::uint32_t source_slot, std::uint32_t target_slot,
                    std::vector<ByteCopy>& out) const;

  std::uint64_t page_bytes() const;  // sum over regions of one page's pieces
  std::size_t writes_per_page() const;

  // What this plan's source may write at the target, for the target's own check (D4).
  std::vector<ItemSlice> page_slices() const;
  std::vector<ItemSlice> aux_slices() const;
  std::vector<ItemSlice> state_slices() const;

 private:
  std::vector<ItemCopy> page_;
  std::vector<ItemCopy> aux_;
  std::vector<ItemCopy> state_;
  std::vector<std::uint64_t> source_item_bytes_;  // by source region
};

}  // namespace kvferry::layout
