#include "dialect/sglang/stock_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace kvferry::sglang {
namespace {

using Reason = std::optional<std::string>;

std::size_t page_regions(const LayoutShape& layout) {
  return static_cast<std::size_t>(
      std::count_if(layout.regions.begin(), layout.regions.end(),
                    [](const RegionShape& region) { return holds_pages(region.kind); }));
}

Reason why_no_place(const DecodeRank& rank, const LayoutShape& own) {
  if (rank.tp_size != own.rank.tp_size) {
    return fmt::format("decode has {} TP ranks, prefill {}: only equal sizes are served",
                       rank.tp_size, own.rank.tp_size);
  }
  if (rank.tp_rank % rank.tp_size != own.rank.tp_rank) {
    return fmt::format("decode's TP rank {} belongs to another prefill rank than {}", rank.tp_rank,
                       own.rank.tp_rank);
  }
  if (rank.dcp_size != 1) {
    return fmt::format("decode context parallelism of {} is not served", rank.dcp_size);
  }
  return std::nullopt;
}

Reason why_no_buffers(const DecodeRank& rank, const LayoutShape& own) {
  const DecodeMemory& memory = rank.memory;
  if (!memory.state_pointers.empty()) {
    return fmt::format("{} state components are not served", memory.state_pointers.size());
  }
  if (memory.kv_pointers.size() != page_regions(own)) {
    return fmt::format("decode has {} KV buffers, prefill {}", memory.kv_pointers.size(),
                       page_regions(own));
  }
  std::size_t buffer = 0;
  for (const RegionShape& region : own.regions) {
    if (!holds_pages(region.kind)) {
      continue;
    }
    if (!memory.kv_layers.empty() && memory.kv_layers[buffer] != region.layer) {
      return fmt::format("KV buffer {} is of layer {} on decode, of {} on prefill", buffer,
                         memory.kv_layers[buffer], region.layer);
    }
    const std::uint64_t theirs =
        memory.kv_item_bytes_of.empty() ? memory.kv_item_bytes : memory.kv_item_bytes_of[buffer];
    if (theirs != region.item_bytes) {
      return fmt::format("a page of KV buffer {} has {} bytes on decode, {} on prefill", buffer,
                         theirs, region.item_bytes);
    }
    ++buffer;
  }
  return std::nullopt;
}

}  // namespace

DecodeRank decode_rank_of(const MooncakeRegistration& registration) {
  DecodeRank rank;
  rank.name = {Flavour::kMooncake, registration.session};
  rank.endpoint = registration.endpoint;
  rank.memory = registration.memory;
  rank.tp_rank = registration.tp_rank;
  rank.tp_size = registration.tp_size;
  rank.dcp_size = registration.dcp_size;
  return rank;
}

DecodeRank decode_rank_of(const NixlRegistration& registration) {
  DecodeRank rank;
  rank.name = {Flavour::kNixl, registration.agent};
  rank.endpoint = registration.endpoint;
  rank.memory = registration.memory;
  rank.tp_rank = registration.tp_rank;
  rank.tp_size = registration.tp_size;
  rank.dcp_size = registration.dcp_size;
  rank.kv_pages = registration.kv_slots;
  const std::vector<NixlMemory>& kinds = registration.kv_memory_kinds;
  rank.vram_buffers = kinds.empty()
                          ? registration.memory.kv_pointers.size()
                          : static_cast<std::size_t>(std::ranges::count(kinds, NixlMemory::kVram));
  return rank;
}

RoomRequest room_request_of(const MooncakeMetadata& metadata) {
  return {{Flavour::kMooncake, metadata.session},
          metadata.target,
          metadata.aux_index,
          !metadata.device_pages.empty(),
          metadata.is_dummy()};
}

RoomRequest room_request_of(const NixlMetadata& metadata) {
  return {{Flavour::kNixl, metadata.agent},
          metadata.target,
          metadata.aux_index,
          false,
          metadata.is_dummy};
}

std::optional<std::string> why_not_served(const DecodeRank& rank, const LayoutShape& own) {
  if (rank.vram_buffers > 0) {
    return fmt::format("{} of decode's {} KV buffers are device memory (VRAM), which is not served",
                       rank.vram_buffers, rank.memory.kv_pointers.size());
  }
  if (Reason reason = why_no_place(rank, own)) {
    return reason;
  }
  if (Reason reason = why_no_buffers(rank, own)) {
    return reason;
  }
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (rank.kv_pages && !rank.memory.kv_pointers.empty() &&
      (*rank.kv_pages == 0 || *rank.kv_pages > most)) {
    return fmt::format("decode's KV buffers have {} pages, served are 1 to {}", *rank.kv_pages,
                       most);
  }
  return std::nullopt;
}

}  // namespace kvferry::sglang
