#include "layout_input.h"

#include <algorithm>
#include <set>
#include <utility>

namespace kvferry::fuzz {
namespace {

// Standard C++ has no 128-bit numbers, both compilers have.
__extension__ using Wide = unsigned __int128;

constexpr std::uint32_t kMostOfAnything = 1U << 16;
constexpr std::uint64_t kMostBytes = 1ULL << 62;

std::uint64_t item_bytes(const ModelSizes& sizes, HeadSlice heads) {
  return std::uint64_t{sizes.page_tokens} * (heads.end - heads.begin) * sizes.head_dim *
         dtype_bytes(sizes.dtype);
}

void add_pages(const ModelSizes& sizes, LayoutShape& shape) {
  const std::uint64_t bytes = item_bytes(sizes, shape.heads);
  const auto add = [&](RegionKind kind, std::uint32_t layer) {
    shape.regions.push_back({kind, layer, bytes, sizes.pages, MemoryKind::kHost});
  };
  for (std::uint32_t layer = shape.layers.begin; layer < shape.layers.end; ++layer) {
    if (sizes.other) {
      shape.regions.push_back({RegionKind::kOther, layer, 12, sizes.pages, MemoryKind::kHost});
      continue;
    }
    add(RegionKind::kKey, layer);
    if (!sizes.keys_first) {
      add(RegionKind::kValue, layer);
    }
  }
  for (std::uint32_t layer = shape.layers.begin;
       sizes.keys_first && !sizes.other && layer < shape.layers.end; ++layer) {
    add(RegionKind::kValue, layer);
  }
}

LayoutShape rank_of(const ModelSizes& sizes, RankCoordinates rank) {
  LayoutShape shape;
  shape.model_fingerprint = "model";
  shape.page_size_tokens = sizes.page_tokens;
  shape.total_layers = sizes.layers;
  shape.total_kv_heads = sizes.heads;
  shape.head_dim = sizes.head_dim;
  shape.dtype = sizes.dtype;
  shape.rank = rank;
  shape.layers = {rank.pp_rank * sizes.layers / rank.pp_size,
                  (rank.pp_rank + 1) * sizes.layers / rank.pp_size};
  // More ranks than heads: heads are held by several ranks.
  const std::uint32_t head = rank.tp_rank * sizes.heads / rank.tp_size;
  shape.heads = {head, std::max(head + 1, (rank.tp_rank + 1) * sizes.heads / rank.tp_size)};
  if (shape.layers.begin == shape.layers.end) {
    return shape;  // a dummy rank
  }
  add_pages(sizes, shape);
  if (sizes.aux) {
    shape.regions.push_back({RegionKind::kAux, 0, kAuxRecordBytes, 2, MemoryKind::kHost});
  }
  if (sizes.state) {
    shape.regions.push_back({RegionKind::kState, shape.layers.begin, 9, 2, MemoryKind::kHost});
  }
  return shape;
}

void damage_region(Input& input, LayoutShape& shape) {
  if (shape.regions.empty()) {
    return;
  }
  RegionShape& region = shape.regions[input.below(256) % shape.regions.size()];
  switch (input.below(7)) {
    case 0:
      region.item_bytes = input.near(region.item_bytes);
      return;
    case 1:
      region.item_count = input.near(region.item_count);
      return;
    case 2:
      region.layer = input.near(region.layer);
      return;
    case 3:
      region.kind = static_cast<RegionKind>(input.below(5));
      return;
    case 4:
      region.memory = static_cast<MemoryKind>(input.below(2));
      return;
    case 5: {
      const RegionShape copy = region;
      shape.regions.push_back(copy);
      return;
    }
    default:
      shape.regions.pop_back();
  }
}

bool in(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  return least <= value && value <= most;
}

bool is_sound_region(const LayoutShape& shape, const RegionShape& region) {
  if (region.item_bytes == 0 || region.item_count == 0 ||
      Wide{region.item_bytes} * region.item_count > kMostBytes) {
    return false;
  }
  switch (region.kind) {
    case RegionKind::kAux:
      return region.item_bytes >= kAuxRecordBytes;
    case RegionKind::kKey:
    case RegionKind::kValue:
      if (Wide{region.item_bytes} != Wide{shape.page_size_tokens} *
                                         (shape.heads.end - shape.heads.begin) * shape.head_dim *
                                         dtype_bytes(shape.dtype)) {
        return false;
      }
      break;
    case RegionKind::kOther:
    case RegionKind::kState:
      break;
  }
  return shape.layers.begin <= region.layer && region.layer < shape.layers.end;
}

bool are_sound_regions(const LayoutShape& shape) {
  std::set<std::pair<RegionKind, std::uint32_t>> seen;
  std::set<std::uint32_t> page_counts;
  Wide bytes = 0;
  int aux = 0;
  for (const RegionShape& region : shape.regions) {
    bytes += Wide{region.item_bytes} * region.item_count;
    if (!is_sound_region(shape, region)) {
      return false;
    }
    aux += region.kind == RegionKind::kAux ? 1 : 0;
    if (!holds_pages(region.kind)) {
      continue;
    }
    page_counts.insert(region.item_count);
    if (!seen.emplace(region.kind, region.layer).second) {
      return false;
    }
  }
  return aux <= 1 && page_counts.size() <= 1 && bytes <= kMostBytes;
}

}  // namespace

ModelSizes read_sizes(Input& input) {
  ModelSizes sizes;
  sizes.layers = 1 + input.below(4);
  sizes.heads = 1 + input.below(5);
  sizes.head_dim = 1 + input.below(3);
  sizes.page_tokens = 1 + input.below(4);
  sizes.pages = 1 + input.below(4);
  sizes.dtype = static_cast<DType>(input.below(6));
  const std::uint8_t flags = input.byte();
  sizes.keys_first = (flags & 1) != 0;
  sizes.other = (flags & 2) != 0;
  sizes.aux = (flags & 4) != 0;
  sizes.state = (flags & 8) != 0;
  return sizes;
}

std::vector<LayoutShape> read_ranks(Input& input, const ModelSizes& sizes) {
  const std::uint32_t tp_size = 1 + input.below(6);
  const std::uint32_t pp_size = 1 + input.below(4);
  std::vector<LayoutShape> ranks;
  for (std::uint32_t pp_rank = 0; pp_rank < pp_size; ++pp_rank) {
    for (std::uint32_t tp_rank = 0; tp_rank < tp_size; ++tp_rank) {
      ranks.push_back(rank_of(sizes, {tp_rank, tp_size, pp_rank, pp_size, 0, 1}));
    }
  }
  return ranks;
}

void damage(Input& input, LayoutShape& shape) {
  for (std::uint32_t changes = input.below(4); changes > 0; --changes) {
    switch (input.below(16)) {
      case 0:
        shape.page_size_tokens = input.near(shape.page_size_tokens);
        break;
      case 1:
        shape.total_layers = input.near(shape.total_layers);
        break;
      case 2:
        shape.total_kv_heads = input.near(shape.total_kv_heads);
        break;
      case 3:
        shape.head_dim = input.near(shape.head_dim);
        break;
      case 4:
        shape.dtype = static_cast<DType>(input.below(8));
        break;
      case 5:
        shape.layers.begin = input.near(shape.layers.begin);
        break;
      case 6:
        shape.layers.end = input.near(shape.layers.end);
        break;
      case 7:
        shape.heads.begin = input.near(shape.heads.begin);
        break;
      case 8:
        shape.heads.end = input.near(shape.heads.end);
        break;
      case 9:
        shape.rank.tp_rank = input.near(shape.rank.tp_rank);
        break;
      case 10:
        shape.rank.pp_size = input.near(shape.rank.pp_size);
        break;
      case 11:
        shape.rank.dp_size = input.near(shape.rank.dp_size);
        break;
      case 12:
        shape.model_fingerprint.resize(std::size_t{8} * input.byte(), 'm');
        break;
      default:
        damage_region(input, shape);
    }
  }
}

bool is_sound(const LayoutShape& shape) {
  const RankCoordinates& rank = shape.rank;
  const auto is_place = [](std::uint32_t place, std::uint32_t size) {
    return in(size, 1, kMostOfAnything) && place < size;
  };
  return shape.model_fingerprint.size() <= 1'024 && shape.dtype <= DType::kF8E5M2 &&
         in(shape.page_size_tokens, 1, kMostOfAnything) &&
         in(shape.total_layers, 1, kMostOfAnything) &&
         in(shape.total_kv_heads, 1, kMostOfAnything) && in(shape.head_dim, 1, kMostOfAnything) &&
         shape.layers.begin <= shape.layers.end && shape.layers.end <= shape.total_layers &&
         shape.heads.begin <= shape.heads.end && shape.heads.end <= shape.total_kv_heads &&
         is_place(rank.tp_rank, rank.tp_size) && is_place(rank.pp_rank, rank.pp_size) &&
         is_place(rank.dp_rank, rank.dp_size) && shape.regions.size() <= 4'096 &&
         are_sound_regions(shape);
}

}  // namespace kvferry::fuzz
