// Which bytes make up a page on one rank, and whether two ranks can be a pair. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::layout {

// A field that differs, with both values as text.
struct Mismatch {
  std::string field;
  std::string local;
  std::string peer;
  // "page_size_tokens: 64 here, 32 at the peer".
  std::string to_text() const;
};

// The shape that goes into the hello. Checks the arguments: non-zero sizes, slices within the
// totals, K/V item_bytes = page_size_tokens x heads x head_dim x dtype_bytes, layers within range,
// equal item counts over all K/V/other regions, at most one aux region of at least kAuxRecordBytes.
Result<LayoutShape> make_shape(const KvArgs& args);

// What a peer sent is checked in the same way before it is used (S11).
Status check_shape(const LayoutShape& shape);

// First field in which the two can't be a pair: model, page size, layers, heads, dtype, region
// order, item bytes (scaled by the ranks' head slices), memory kind. Item counts may differ.
std::optional<Mismatch> compare(const LayoutShape& local, const LayoutShape& peer);
std::optional<Mismatch> compare(const Numerics& local, const Numerics& peer);

// S8: "page 9 of 8", for the first region that lacks an item of these numbers, with the largest of
// them; nullopt when every number names an item. aux_slot -1: none.
std::optional<std::string> find_outside(std::span<const RegionShape> regions,
                                        std::span<const PageIndex> pages, std::int64_t aux_slot,
                                        std::span<const std::uint32_t> state_slots);

}  // namespace kvferry::layout
