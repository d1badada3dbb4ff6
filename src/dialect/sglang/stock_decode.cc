#include "dialect/sglang/stock_decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "dialect/sglang/rank_mapping.h"
#include "dialect/sglang/stock_shape.h"

namespace kvferry::sglang {
namespace {

tl::unexpected<Failure> refuse(std::string what) {
  return fail(FailureCode::kLayoutMismatch, std::move(what), FailureWhere::kPeer);
}

// Whether SGLang's formulas have this decode rank ask this prefill rank, and for data.
Status check_place(const DecodeRank& rank, const LayoutShape& own) {
  if (rank.dcp_size != 1) {
    return refuse(fmt::format("decode context parallelism of {} is not served", rank.dcp_size));
  }
  DecodeShape decode = decode_shape(own);
  decode.tp_size = rank.tp_size;
  decode.engine_rank = rank.tp_rank;
  const Result<RankMapping> mapping = map_ranks(prefill_shape(own.rank), decode);
  if (!mapping) {
    return tl::unexpected(mapping.error());
  }
  if (!std::ranges::count(mapping->tp_ranks, own.rank.tp_rank)) {
    return refuse(fmt::format("decode's TP rank {} belongs to another prefill rank than {}",
                              rank.tp_rank, own.rank.tp_rank));
  }
  if (mapping->others_are_dummies) {
    return refuse(
        fmt::format("prefill has {} TP ranks and decode {}: ranks that send nothing are not served",
                    own.rank.tp_size, rank.tp_size));
  }
  return {};
}

// Of a rank with another share of the heads.
Status check_shares(const DecodeRank& rank, const LayoutShape& own) {
  const std::uint32_t own_share = own.heads.end - own.heads.begin;
  if (own.total_kv_heads % rank.tp_size != 0 ||
      own_share * own.rank.tp_size != own.total_kv_heads) {
    return refuse(fmt::format(
        "{} KV heads on {} TP ranks of prefill and {} of decode: served are whole shares",
        own.total_kv_heads, own.rank.tp_size, rank.tp_size));
  }
  return {};
}

Status check_buffers(const DecodeRank& rank, const LayoutShape& expected) {
  const DecodeMemory& memory = rank.memory;
  if (!memory.state_pointers.empty()) {
    return refuse(fmt::format("{} state components are not served", memory.state_pointers.size()));
  }
  const auto buffers = static_cast<std::size_t>(std::ranges::count_if(
      expected.regions, [](const RegionShape& region) { return holds_pages(region.kind); }));
  if (memory.kv_pointers.size() != buffers) {
    return refuse(
        fmt::format("decode has {} KV buffers, prefill {}", memory.kv_pointers.size(), buffers));
  }
  std::size_t buffer = 0;
  for (const RegionShape& region : expected.regions) {
    if (!holds_pages(region.kind)) {
      continue;
    }
    if (!memory.kv_layers.empty() && memory.kv_layers[buffer] != region.layer) {
      return refuse(fmt::format("KV buffer {} is of layer {} on decode, of {} on prefill", buffer,
                                memory.kv_layers[buffer], region.layer));
    }
    const std::uint64_t theirs =
        memory.kv_item_bytes_of.empty() ? memory.kv_item_bytes : memory.kv_item_bytes_of[buffer];
    if (theirs != region.item_bytes) {
      return refuse(
          fmt::format("a page of KV buffer {} has {} bytes on decode, not the {} of its "
                      "share of prefill's heads",
                      buffer, theirs, region.item_bytes));
    }
    ++buffer;
  }
  return {};
}

Status take_pool_size(const DecodeRank& rank, LayoutShape& out) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (!rank.kv_pages || rank.memory.kv_pointers.empty()) {
    return {};
  }
  if (*rank.kv_pages == 0 || *rank.kv_pages > kMost) {
    return refuse(fmt::format("decode's KV buffers have {} pages, served are 1 to {}",
                              *rank.kv_pages, kMost));
  }
  for (RegionShape& region : out.regions) {
    if (holds_pages(region.kind)) {
      region.item_count = static_cast<std::uint32_t>(*rank.kv_pages);
    }
  }
  return {};
}

template <typename Registration>
DecodeRank common_part(SessionName name, const Registration& registration) {
  DecodeRank rank;
  rank.name = std::move(name);
  rank.endpoint = registration.endpoint;
  rank.memory = registration.memory;
  rank.tp_rank = registration.tp_rank;
  rank.tp_size = registration.tp_size;
  rank.dcp_size = registration.dcp_size;
  return rank;
}

}  // namespace

DecodeRank decode_rank_of(const MooncakeRegistration& registration) {
  return common_part({Flavour::kMooncake, registration.session}, registration);
}

DecodeRank decode_rank_of(const NixlRegistration& registration) {
  DecodeRank rank = common_part({Flavour::kNixl, registration.agent}, registration);
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

Result<LayoutShape> layout_of(const DecodeRank& rank, const LayoutShape& own) {
  if (rank.vram_buffers > 0) {
    return refuse(
        fmt::format("{} of decode's {} KV buffers are device memory (VRAM), which is not served",
                    rank.vram_buffers, rank.memory.kv_pointers.size()));
  }
  if (const Status place = check_place(rank, own); !place) {
    return tl::unexpected(place.error());
  }
  LayoutShape out = own;
  if (rank.tp_size != own.rank.tp_size) {
    if (decode_shape(own).kv == KvKind::kHeads) {
      if (const Status shares = check_shares(rank, own); !shares) {
        return tl::unexpected(shares.error());
      }
    }
    out = at_tp_place(own, rank.tp_rank % rank.tp_size, rank.tp_size);
  }
  if (const Status buffers = check_buffers(rank, out); !buffers) {
    return tl::unexpected(buffers.error());
  }
  if (const Status pages = take_pool_size(rank, out); !pages) {
    return tl::unexpected(pages.error());
  }
  return out;
}

}  // namespace kvferry::sglang
