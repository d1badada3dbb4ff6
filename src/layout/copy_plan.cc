#include "layout/copy_plan.h"

#include <fmt/format.h>

#include <numeric>

#include "layout/shape_regions.h"

namespace kvferry::layout {
namespace {

tl::unexpected<Failure> mismatch(std::string what) {
  return fail(FailureCode::kLayoutMismatch, std::move(what));
}

bool is_within(const SharedPart& part, const LayoutShape& shape) {
  return !part.is_empty() && shape.layers.begin <= part.layers.begin &&
         part.layers.end <= shape.layers.end && shape.heads.begin <= part.heads.begin &&
         part.heads.end <= shape.heads.end;
}

ItemCopy whole_item(std::uint32_t source, std::uint32_t target, std::uint64_t bytes) {
  ItemCopy copy;
  copy.source_region = RegionId(source);
  copy.target_region = RegionId(target);
  copy.piece_bytes = bytes;
  return copy;
}

// Items are [token][head][dim]: within a token the shared heads are contiguous.
ItemCopy head_slice(std::uint32_t source_index, const LayoutShape& source,
                    std::uint32_t target_index, const LayoutShape& target, HeadSlice heads) {
  const std::uint64_t head_bytes = std::uint64_t{source.head_dim} * dtype_bytes(source.dtype);
  ItemCopy copy;
  copy.source_region = RegionId(source_index);
  copy.target_region = RegionId(target_index);
  copy.source_offset = (heads.begin - source.heads.begin) * head_bytes;
  copy.target_offset = (heads.begin - target.heads.begin) * head_bytes;
  copy.piece_bytes = (heads.end - heads.begin) * head_bytes;
  copy.piece_count = source.page_size_tokens;
  copy.source_stride = (source.heads.end - source.heads.begin) * head_bytes;
  copy.target_stride = (target.heads.end - target.heads.begin) * head_bytes;
  if (copy.source_stride == copy.piece_bytes && copy.target_stride == copy.piece_bytes) {
    copy.piece_bytes *= copy.piece_count;
    copy.piece_count = 1;
  }
  if (copy.piece_count == 1) {
    copy.source_stride = 0;
    copy.target_stride = 0;
  }
  return copy;
}

Result<ItemCopy> copy_of(std::uint32_t source_index, const LayoutShape& source,
                         std::uint32_t target_index, const LayoutShape& target, HeadSlice heads) {
  const RegionShape& from = source.regions[source_index];
  const RegionShape& to = target.regions[target_index];
  if (from.kind != to.kind || from.layer != to.layer) {
    return mismatch(
        fmt::format("region order: {} of layer {} at the source, {} of layer {} at the "
                    "target",
                    to_string(from.kind), from.layer, to_string(to.kind), to.layer));
  }
  if (from.kind == RegionKind::kKey || from.kind == RegionKind::kValue) {
    return head_slice(source_index, source, target_index, target, heads);
  }
  if (from.item_bytes != to.item_bytes) {
    return mismatch(fmt::format("item_bytes of {} of layer {}: {} at the source, {} at the target",
                                to_string(from.kind), from.layer, from.item_bytes, to.item_bytes));
  }
  // Nothing is known of such an item's inside, so it can only be copied whole, from one writer.
  if (from.kind == RegionKind::kOther && (heads != source.heads || heads != target.heads)) {
    return mismatch(
        fmt::format("{} of layer {} can't be split by heads: [{}, {}) at the source, "
                    "[{}, {}) at the target",
                    to_string(from.kind), from.layer, source.heads.begin, source.heads.end,
                    target.heads.begin, target.heads.end));
  }
  return whole_item(source_index, target_index, from.item_bytes);
}

const RegionShape* find_aux(const LayoutShape& shape, std::uint32_t& index) {
  for (index = 0; index < shape.regions.size(); ++index) {
    if (shape.regions[index].kind == RegionKind::kAux) {
      return &shape.regions[index];
    }
  }
  return nullptr;
}

void expand(std::span<const ItemCopy> copies, std::span<const std::uint64_t> source_item_bytes,
            std::uint32_t source_item, std::uint32_t target_item, std::vector<ByteCopy>& out) {
  for (const ItemCopy& copy : copies) {
    std::uint64_t source_offset =
        source_item_bytes[copy.source_region.value()] * source_item + copy.source_offset;
    std::uint64_t target_offset = copy.target_offset;
    for (std::uint32_t piece = 0; piece < copy.piece_count; ++piece) {
      out.push_back({copy.source_region, source_offset, copy.target_region, target_item,
                     target_offset, copy.piece_bytes});
      source_offset += copy.source_stride;
      target_offset += copy.target_stride;
    }
  }
}

std::vector<ItemSlice> slices_of(std::span<const ItemCopy> copies) {
  std::vector<ItemSlice> slices;
  slices.reserve(copies.size());
  for (const ItemCopy& copy : copies) {
    slices.push_back({copy.target_region, copy.target_offset, copy.piece_bytes, copy.piece_count,
                      copy.target_stride});
  }
  return slices;
}

}  // namespace

Result<CopyPlan> CopyPlan::make(const LayoutShape& source, const LayoutShape& target,
                                const SharedPart& part) {
  if (!is_within(part, source) || !is_within(part, target)) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("layers [{}, {}) and heads [{}, {}) are not a part of both ranks",
                            part.layers.begin, part.layers.end, part.heads.begin, part.heads.end));
  }
  if (source.page_size_tokens != target.page_size_tokens || source.head_dim != target.head_dim ||
      source.dtype != target.dtype) {
    return mismatch("page size, head_dim or dtype differ");
  }
  const auto from = regions_within(source, part.layers);
  const auto to = regions_within(target, part.layers);
  if (from.size() != to.size()) {
    return mismatch(fmt::format("regions of layers [{}, {}): {} at the source, {} at the target",
                                part.layers.begin, part.layers.end, from.size(), to.size()));
  }
  CopyPlan plan;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto copy = copy_of(from[i], source, to[i], target, part.heads);
    if (!copy) {
      return tl::unexpected<Failure>(copy.error());
    }
    (holds_pages(source.regions[from[i]].kind) ? plan.page_ : plan.state_).push_back(*copy);
  }
  std::uint32_t source_aux = 0;
  std::uint32_t target_aux = 0;
  const RegionShape* aux_from = find_aux(source, source_aux);
  const RegionShape* aux_to = find_aux(target, target_aux);
  if (aux_from != nullptr && aux_to != nullptr) {
    if (aux_from->item_bytes != aux_to->item_bytes) {
      return mismatch(fmt::format("item_bytes of aux: {} at the source, {} at the target",
                                  aux_from->item_bytes, aux_to->item_bytes));
    }
    plan.aux_.push_back(whole_item(source_aux, target_aux, aux_from->item_bytes));
  }
  plan.source_item_bytes_.reserve(source.regions.size());
  for (const RegionShape& region : source.regions) {
    plan.source_item_bytes_.push_back(region.item_bytes);
  }
  return plan;
}

void CopyPlan::expand_page(PageIndex source, PageIndex target, std::vector<ByteCopy>& out) const {
  expand(page_, source_item_bytes_, source.value(), target.value(), out);
}

bool CopyPlan::expand_aux(std::uint32_t source_slot, std::uint32_t target_slot,
                          std::vector<ByteCopy>& out) const {
  expand(aux_, source_item_bytes_, source_slot, target_slot, out);
  return !aux_.empty();
}

bool CopyPlan::expand_state(std::uint32_t source_slot, std::uint32_t target_slot,
                            std::vector<ByteCopy>& out) const {
  expand(state_, source_item_bytes_, source_slot, target_slot, out);
  return !state_.empty();
}

std::uint64_t CopyPlan::page_bytes() const {
  return std::accumulate(page_.begin(), page_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const ItemCopy& copy) {
                           return sum + copy.piece_bytes * copy.piece_count;
                         });
}

std::size_t CopyPlan::writes_per_page() const {
  return std::accumulate(
      page_.begin(), page_.end(), std::size_t{0},
      [](std::size_t sum, const ItemCopy& copy) { return sum + copy.piece_count; });
}

std::vector<ItemSlice> CopyPlan::page_slices() const { return slices_of(page_); }
std::vector<ItemSlice> CopyPlan::aux_slices() const { return slices_of(aux_); }
std::vector<ItemSlice> CopyPlan::state_slices() const { return slices_of(state_); }

}  // namespace kvferry::layout
