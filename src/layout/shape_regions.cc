#include "layout/shape_regions.h"

namespace kvferry::layout {

std::vector<std::uint32_t> regions_within(const LayoutShape& shape, LayerRange layers) {
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < shape.regions.size(); ++i) {
    const RegionShape& region = shape.regions[i];
    if (region.kind != RegionKind::kAux && layers.begin <= region.layer &&
        region.layer < layers.end) {
      indices.push_back(i);
    }
  }
  return indices;
}

}  // namespace kvferry::layout
