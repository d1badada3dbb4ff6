#include "dialect/sglang/stock_shape.h"

#include <algorithm>

namespace kvferry::sglang {

DecodeShape decode_shape(const LayoutShape& own) {
  DecodeShape out;
  out.tp_size = own.rank.tp_size;
  out.pp_size = own.rank.pp_size;
  out.engine_rank = own.rank.tp_rank;
  out.pp_rank = own.rank.pp_rank;
  const bool latents = std::ranges::any_of(
      own.regions, [](const RegionShape& region) { return region.kind == RegionKind::kOther; });
  out.kv = latents ? KvKind::kLatents : KvKind::kHeads;
  return out;
}

PrefillShape prefill_shape(const RankCoordinates& rank) {
  PrefillShape out;
  out.tp_size = rank.tp_size;
  out.pp_size = rank.pp_size;
  return out;
}

LayoutShape at_tp_place(LayoutShape layout, std::uint32_t tp_rank, std::uint32_t tp_size) {
  layout.rank.tp_rank = tp_rank;
  layout.rank.tp_size = tp_size;
  if (decode_shape(layout).kv != KvKind::kHeads) {
    return layout;
  }
  const std::uint32_t share = layout.total_kv_heads / tp_size;
  const std::uint32_t former_share = layout.heads.end - layout.heads.begin;
  layout.heads = {tp_rank * share, (tp_rank + 1) * share};
  for (RegionShape& region : layout.regions) {
    if (region.kind == RegionKind::kKey || region.kind == RegionKind::kValue) {
      region.item_bytes = region.item_bytes / former_share * share;
    }
  }
  return layout;
}

}  // namespace kvferry::sglang
