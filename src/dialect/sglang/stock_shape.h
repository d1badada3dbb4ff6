// A layout of ours in SGLang's terms, and as a rank in another TP place would have it. Pure.
#pragma once

#include <cstdint>

#include "base/layout_shape.h"
#include "dialect/sglang/rank_mapping.h"
#include "kvferry/kv_args.h"

namespace kvferry::sglang {

// How SGLang would describe a decode rank with this layout.
DecodeShape decode_shape(const LayoutShape& own);
// How it would describe the prefill server that a rank in this place belongs to; one CP rank.
PrefillShape prefill_shape(const RankCoordinates& rank);

// The layout of the rank in this TP place of the same model: latents are the same on every rank,
// of heads it has its share, which must be whole (total_kv_heads divides by tp_size).
LayoutShape at_tp_place(LayoutShape layout, std::uint32_t tp_rank, std::uint32_t tp_size);

}  // namespace kvferry::sglang
