// Ranks of small engines for the layout tests.
#pragma once

#include <cstdint>
#include <vector>

#include "base/layout_shape.h"

namespace kvferry::layout {

struct EngineShape {
  std::uint32_t tp_size = 1;
  std::uint32_t pp_size = 1;
  std::uint32_t page_size_tokens = 4;
  std::uint32_t total_layers = 4;
  std::uint32_t total_kv_heads = 4;
  std::uint32_t head_dim = 2;
  DType dtype = DType::kF16;
  std::uint32_t page_count = 6;
  bool has_aux = true;
  bool has_state = true;
  bool keys_first = false;  // all keys, then all values; else by layer
};

// One shape per rank, pp outer, tp inner. With more tp ranks than heads, neighbours hold the same
// head.
std::vector<LayoutShape> ranks_of(const EngineShape& engine);

// Regions of one kind and layer in the shape, -1 when there is none.
int find_region(const LayoutShape& shape, RegionKind kind, std::uint32_t layer);

}  // namespace kvferry::layout
