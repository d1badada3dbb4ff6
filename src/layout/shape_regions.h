// Questions about the regions of one rank's shape that several parts of the layout ask. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/kv_args.h"

namespace kvferry::layout {

// Whether its items are pages of the KV pools, in contrast to state and aux slots.
bool has_pages(RegionKind kind);

// The regions of these layers, aux apart, as positions in shape.regions. Two shapes that fit each
// other have them in the same order: the n-th of one is the n-th of the other.
std::vector<std::uint32_t> regions_within(const LayoutShape& shape, LayerRange layers);

}  // namespace kvferry::layout
