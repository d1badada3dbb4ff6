#include "shapes.h"

namespace kvferry::layout {
namespace {

constexpr std::uint64_t kStateItemBytes = 24;

LayoutShape rank_of(const EngineShape& engine, std::uint32_t pp_rank, std::uint32_t tp_rank) {
  LayoutShape shape;
  shape.model_fingerprint = "model";
  shape.page_size_tokens = engine.page_size_tokens;
  shape.total_layers = engine.total_layers;
  shape.total_kv_heads = engine.total_kv_heads;
  shape.head_dim = engine.head_dim;
  shape.dtype = engine.dtype;
  shape.rank = {tp_rank, engine.tp_size, pp_rank, engine.pp_size, 0, 1};
  shape.layers = {pp_rank * engine.total_layers / engine.pp_size,
                  (pp_rank + 1) * engine.total_layers / engine.pp_size};
  if (engine.tp_size <= engine.total_kv_heads) {
    shape.heads = {tp_rank * engine.total_kv_heads / engine.tp_size,
                   (tp_rank + 1) * engine.total_kv_heads / engine.tp_size};
  } else {
    const std::uint32_t head = tp_rank * engine.total_kv_heads / engine.tp_size;
    shape.heads = {head, head + 1};
  }
  const std::uint64_t item_bytes = std::uint64_t{engine.page_size_tokens} *
                                   (shape.heads.end - shape.heads.begin) * engine.head_dim *
                                   dtype_bytes(engine.dtype);
  const auto add = [&](RegionKind kind, std::uint32_t layer) {
    shape.regions.push_back({kind, layer, item_bytes, engine.page_count, MemoryKind::kHost});
  };
  for (std::uint32_t layer = shape.layers.begin; layer < shape.layers.end; ++layer) {
    add(RegionKind::kKey, layer);
    if (!engine.keys_first) {
      add(RegionKind::kValue, layer);
    }
  }
  for (std::uint32_t layer = shape.layers.begin; engine.keys_first && layer < shape.layers.end;
       ++layer) {
    add(RegionKind::kValue, layer);
  }
  if (engine.has_aux) {
    shape.regions.push_back({RegionKind::kAux, 0, 64, 3, MemoryKind::kHost});
  }
  // Two state tensors of one kind on every second layer, as models with state space layers have.
  for (std::uint32_t layer = shape.layers.begin; layer < shape.layers.end; ++layer) {
    if (engine.has_state && layer % 2 == 0) {
      const RegionShape state{RegionKind::kState, layer, kStateItemBytes, 5, MemoryKind::kHost};
      shape.regions.push_back(state);
      shape.regions.push_back(state);
      shape.regions.back().item_bytes /= 2;
    }
  }
  return shape;
}

}  // namespace

std::vector<LayoutShape> ranks_of(const EngineShape& engine) {
  std::vector<LayoutShape> ranks;
  for (std::uint32_t pp_rank = 0; pp_rank < engine.pp_size; ++pp_rank) {
    for (std::uint32_t tp_rank = 0; tp_rank < engine.tp_size; ++tp_rank) {
      ranks.push_back(rank_of(engine, pp_rank, tp_rank));
    }
  }
  return ranks;
}

int find_region(const LayoutShape& shape, RegionKind kind, std::uint32_t layer) {
  for (std::size_t i = 0; i < shape.regions.size(); ++i) {
    if (shape.regions[i].kind == kind && shape.regions[i].layer == layer) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace kvferry::layout
