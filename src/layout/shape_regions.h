// Which regions of a rank's shape two ranks have in common. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/layout_shape.h"

namespace kvferry::layout {

// The regions of these layers, aux apart, as positions in shape.regions. Two shapes that fit each
// other have them in the same order: the n-th of one is the n-th of the other.
std::vector<std::uint32_t> regions_within(const LayoutShape& shape, LayerRange layers);

}  // namespace kvferry::layout
