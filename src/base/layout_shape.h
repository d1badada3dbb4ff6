// The shape of a rank's regions as it crosses the wire: KvArgs without its addresses. Here, at
// level 0, because wire encodes it and layout compares it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvferry/kv_args.h"

namespace kvferry {

struct RegionShape {
  RegionKind kind = RegionKind::kKey;
  std::uint32_t layer = 0;
  std::uint64_t item_bytes = 0;
  std::uint32_t item_count = 0;
  MemoryKind memory = MemoryKind::kHost;
  friend bool operator==(const RegionShape&, const RegionShape&) = default;
};

struct LayoutShape {
  std::string model_fingerprint;
  std::uint32_t page_size_tokens = 0;
  std::uint32_t total_layers = 0;
  std::uint32_t total_kv_heads = 0;
  std::uint32_t head_dim = 0;
  DType dtype = DType::kF16;
  RankCoordinates rank;
  LayerRange layers;
  HeadSlice heads;
  std::vector<RegionShape> regions;
  friend bool operator==(const LayoutShape&, const LayoutShape&) = default;
};

}  // namespace kvferry
