#include "layout/kv_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "layout/shape_regions.h"

namespace kvferry::layout {
namespace {

// Sanity bounds, far above any model. With them no product below overflows 64 bits.
constexpr std::uint32_t kMaxLayers = 1U << 16;
constexpr std::uint32_t kMaxHeads = 1U << 16;
constexpr std::uint32_t kMaxHeadDim = 1U << 16;
constexpr std::uint32_t kMaxPageTokens = 1U << 16;
constexpr std::uint32_t kMaxRanks = 1U << 16;
// What a peer's codec accepts by default.
constexpr std::size_t kMaxFingerprintBytes = 1'024;
constexpr std::uint64_t kMaxTotalBytes = 1ULL << 62;

// Text of what is wrong, or nothing.
using Fault = std::optional<std::string>;

Fault check_number(std::string_view field, std::uint64_t value, std::uint64_t max) {
  if (value >= 1 && value <= max) {
    return std::nullopt;
  }
  return fmt::format("{} is {}, allowed are 1 to {}", field, value, max);
}

Fault check_slice(std::string_view field, std::uint32_t begin, std::uint32_t end,
                  std::uint32_t total) {
  if (begin <= end && end <= total) {
    return std::nullopt;
  }
  return fmt::format("{} [{}, {}) is not within the total of {}", field, begin, end, total);
}

Fault check_rank(std::string_view axis, std::uint32_t rank, std::uint32_t size) {
  if (size >= 1 && size <= kMaxRanks && rank < size) {
    return std::nullopt;
  }
  return fmt::format("{}_rank {} does not fit {}_size {} (at most {})", axis, rank, axis, size,
                     kMaxRanks);
}

Fault check_totals(const LayoutShape& shape) {
  if (shape.model_fingerprint.size() > kMaxFingerprintBytes) {
    return fmt::format("model_fingerprint has {} bytes, allowed are {}",
                       shape.model_fingerprint.size(), kMaxFingerprintBytes);
  }
  if (dtype_bytes(shape.dtype) == 0) {
    return fmt::format("dtype {} is unknown", static_cast<int>(shape.dtype));
  }
  if (shape.regions.size() > kMaxRegions) {
    return fmt::format("{} regions, allowed are {}", shape.regions.size(), kMaxRegions);
  }
  for (Fault fault :
       {check_number("page_size_tokens", shape.page_size_tokens, kMaxPageTokens),
        check_number("total_layers", shape.total_layers, kMaxLayers),
        check_number("total_kv_heads", shape.total_kv_heads, kMaxHeads),
        check_number("head_dim", shape.head_dim, kMaxHeadDim),
        check_slice("layers", shape.layers.begin, shape.layers.end, shape.total_layers),
        check_slice("heads", shape.heads.begin, shape.heads.end, shape.total_kv_heads),
        check_rank("tp", shape.rank.tp_rank, shape.rank.tp_size),
        check_rank("pp", shape.rank.pp_rank, shape.rank.pp_size),
        check_rank("dp", shape.rank.dp_rank, shape.rank.dp_size)}) {
    if (fault) {
      return fault;
    }
  }
  return std::nullopt;
}

// Needs check_totals first.
std::uint64_t kv_item_bytes(const LayoutShape& shape) {
  return std::uint64_t{shape.page_size_tokens} * (shape.heads.end - shape.heads.begin) *
         shape.head_dim * dtype_bytes(shape.dtype);
}

Fault check_region(const LayoutShape& shape, std::size_t index) {
  const RegionShape& region = shape.regions[index];
  const std::string name =
      fmt::format("regions[{}] ({} of layer {})", index, to_string(region.kind), region.layer);
  if (region.item_bytes == 0 || region.item_count == 0) {
    return fmt::format("{}: {} items of {} bytes, neither may be zero", name, region.item_count,
                       region.item_bytes);
  }
  if (region.item_bytes > kMaxTotalBytes / region.item_count) {
    return fmt::format("{}: {} items of {} bytes are more than any memory", name, region.item_count,
                       region.item_bytes);
  }
  if (region.kind == RegionKind::kAux) {
    if (region.item_bytes < kAuxRecordBytes) {
      return fmt::format("{}: item_bytes is {}, an aux record has {}", name, region.item_bytes,
                         kAuxRecordBytes);
    }
    return std::nullopt;
  }
  if (region.layer < shape.layers.begin || region.layer >= shape.layers.end) {
    return fmt::format("{}: layer is not within layers [{}, {})", name, shape.layers.begin,
                       shape.layers.end);
  }
  const bool is_split_by_head =
      region.kind == RegionKind::kKey || region.kind == RegionKind::kValue;
  if (is_split_by_head && region.item_bytes != kv_item_bytes(shape)) {
    return fmt::format("{}: item_bytes is {}, page size x heads x head_dim x dtype is {}", name,
                       region.item_bytes, kv_item_bytes(shape));
  }
  return std::nullopt;
}

Fault check_regions(const LayoutShape& shape) {
  std::set<std::pair<RegionKind, std::uint32_t>> page_regions;
  std::optional<std::uint32_t> page_count;
  std::size_t aux_regions = 0;
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < shape.regions.size(); ++i) {
    if (Fault fault = check_region(shape, i)) {
      return fault;
    }
    const RegionShape& region = shape.regions[i];
    total_bytes += region.item_bytes * region.item_count;
    if (total_bytes > kMaxTotalBytes) {
      return fmt::format("regions hold more than {} bytes in all", kMaxTotalBytes);
    }
    if (region.kind == RegionKind::kAux && ++aux_regions > 1) {
      return fmt::format("regions[{}] is a second aux region", i);
    }
    if (!holds_pages(region.kind)) {
      continue;
    }
    if (!page_regions.emplace(region.kind, region.layer).second) {
      return fmt::format("regions[{}] is a second {} region of layer {}", i, to_string(region.kind),
                         region.layer);
    }
    // A page number names an item in every pool.
    if (page_count.value_or(region.item_count) != region.item_count) {
      return fmt::format("regions[{}] has {} items, earlier ones have {}", i, region.item_count,
                         *page_count);
    }
    page_count = region.item_count;
  }
  return std::nullopt;
}

Fault find_fault(const LayoutShape& shape) {
  if (Fault fault = check_totals(shape)) {
    return fault;
  }
  return check_regions(shape);
}

template <typename T>
std::optional<Mismatch> compare_field(std::string_view field, const T& local, const T& peer) {
  if (local == peer) {
    return std::nullopt;
  }
  return Mismatch{std::string(field), fmt::format("{}", local), fmt::format("{}", peer)};
}

std::string describe(const LayoutShape& shape, const std::vector<std::uint32_t>& indices,
                     std::size_t at) {
  if (at >= indices.size()) {
    return "nothing";
  }
  const RegionShape& region = shape.regions[indices[at]];
  return fmt::format("{} of layer {}", to_string(region.kind), region.layer);
}

std::uint32_t head_count(const LayoutShape& shape) { return shape.heads.end - shape.heads.begin; }

// item_bytes in a form that is equal on ranks with different head slices.
std::uint64_t comparable_item_bytes(const LayoutShape& shape, const RegionShape& region) {
  const bool is_split_by_head =
      region.kind == RegionKind::kKey || region.kind == RegionKind::kValue;
  return is_split_by_head && head_count(shape) > 0 ? region.item_bytes / head_count(shape)
                                                   : region.item_bytes;
}

std::optional<Mismatch> compare_regions(const LayoutShape& local, const LayoutShape& peer) {
  const LayerRange shared{std::max(local.layers.begin, peer.layers.begin),
                          std::min(local.layers.end, peer.layers.end)};
  const auto ours = regions_within(local, shared);
  const auto theirs = regions_within(peer, shared);
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    if (auto mismatch = compare_field(fmt::format("region order, place {}", i),
                                      describe(local, ours, i), describe(peer, theirs, i))) {
      return mismatch;
    }
    const RegionShape& mine = local.regions[ours[i]];
    const RegionShape& other = peer.regions[theirs[i]];
    const std::string name = describe(local, ours, i);
    if (comparable_item_bytes(local, mine) != comparable_item_bytes(peer, other)) {
      return Mismatch{fmt::format("item_bytes of {}", name),
                      fmt::format("{} for {} heads", mine.item_bytes, head_count(local)),
                      fmt::format("{} for {} heads", other.item_bytes, head_count(peer))};
    }
    if (auto mismatch = compare_field(fmt::format("memory of {}", name), to_string(mine.memory),
                                      to_string(other.memory))) {
      return mismatch;
    }
  }
  return std::nullopt;
}

const RegionShape* aux_region(const LayoutShape& shape) {
  const auto found = std::find_if(shape.regions.begin(), shape.regions.end(),
                                  [](const RegionShape& r) { return r.kind == RegionKind::kAux; });
  return found == shape.regions.end() ? nullptr : &*found;
}

// Only the rank that writes aux needs a region for it, so a missing one is no mismatch.
std::optional<Mismatch> compare_aux(const LayoutShape& local, const LayoutShape& peer) {
  const RegionShape* mine = aux_region(local);
  const RegionShape* other = aux_region(peer);
  if (mine == nullptr || other == nullptr) {
    return std::nullopt;
  }
  if (auto mismatch = compare_field("item_bytes of aux", mine->item_bytes, other->item_bytes)) {
    return mismatch;
  }
  return compare_field("memory of aux", to_string(mine->memory), to_string(other->memory));
}

}  // namespace

std::string Mismatch::to_text() const {
  return fmt::format("{}: {} here, {} at the peer", field, local, peer);
}

Result<LayoutShape> make_shape(const KvArgs& args) {
  LayoutShape shape;
  shape.model_fingerprint = args.model_fingerprint;
  shape.page_size_tokens = args.page_size_tokens;
  shape.total_layers = args.total_layers;
  shape.total_kv_heads = args.total_kv_heads;
  shape.head_dim = args.head_dim;
  shape.dtype = args.dtype;
  shape.rank = args.rank;
  shape.layers = args.layers;
  shape.heads = args.heads;
  shape.regions.reserve(args.regions.size());
  for (const Region& region : args.regions) {
    shape.regions.push_back(
        {region.kind, region.layer, region.item_bytes, region.item_count, region.memory});
  }
  if (Fault fault = find_fault(shape)) {
    return fail(FailureCode::kInvalidArgument, "KvArgs: " + *fault);
  }
  return shape;
}

Status check_shape(const LayoutShape& shape) {
  if (Fault fault = find_fault(shape)) {
    return fail(FailureCode::kLayoutMismatch, "the peer's layout is unsound: " + *fault,
                FailureWhere::kPeer);
  }
  return {};
}

std::optional<Mismatch> compare(const LayoutShape& local, const LayoutShape& peer) {
  for (auto mismatch :
       {compare_field("model_fingerprint", local.model_fingerprint, peer.model_fingerprint),
        compare_field("page_size_tokens", local.page_size_tokens, peer.page_size_tokens),
        compare_field("total_layers", local.total_layers, peer.total_layers),
        compare_field("total_kv_heads", local.total_kv_heads, peer.total_kv_heads),
        compare_field("head_dim", local.head_dim, peer.head_dim),
        compare_field("dtype", to_string(local.dtype), to_string(peer.dtype))}) {
    if (mismatch) {
      return mismatch;
    }
  }
  if (auto mismatch = compare_regions(local, peer)) {
    return mismatch;
  }
  return compare_aux(local, peer);
}

std::optional<Mismatch> compare(const Numerics& local, const Numerics& peer) {
  for (auto mismatch : {compare_field("kernel_library", local.kernel_library, peer.kernel_library),
                        compare_field("threads", local.threads, peer.threads),
                        compare_field("prefill_chunk_tokens", local.prefill_chunk_tokens,
                                      peer.prefill_chunk_tokens),
                        compare_field("flags", local.flags, peer.flags)}) {
    if (mismatch) {
      return mismatch;
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_outside(std::span<const RegionShape> regions,
                                        std::span<const PageIndex> pages, std::int64_t aux_slot,
                                        std::span<const std::uint32_t> state_slots) {
  std::int64_t page = -1;
  for (const PageIndex each : pages) {
    page = std::max<std::int64_t>(page, each.value());
  }
  std::int64_t state = -1;
  for (const std::uint32_t each : state_slots) {
    state = std::max<std::int64_t>(state, each);
  }
  for (const RegionShape& region : regions) {
    const bool is_aux = region.kind == RegionKind::kAux;
    const std::int64_t number = holds_pages(region.kind) ? page : is_aux ? aux_slot : state;
    if (number >= static_cast<std::int64_t>(region.item_count)) {
      return fmt::format("{} {} of {}",
                         holds_pages(region.kind) ? "page"
                         : is_aux                 ? "aux slot"
                                                  : "state slot",
                         number, region.item_count);
    }
  }
  return std::nullopt;
}

}  // namespace kvferry::layout
