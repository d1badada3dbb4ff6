#include "engine_memory.h"

#include <algorithm>

#include "wire/aux_record.h"

namespace kvferry::core::fake {
namespace {

constexpr std::uint32_t kPageTokens = 2;
constexpr std::uint32_t kHeads = 2;
constexpr std::uint32_t kHeadDim = 2;
constexpr std::uint32_t kAuxSlots = 8;
constexpr std::int32_t kFirstToken = 11;

std::byte content(Binding binding, RegionKind kind, std::uint32_t position, std::uint32_t token,
                  std::uint32_t head, std::uint32_t dim) {
  std::uint64_t mixed = binding.low * 0x9E3779B97F4A7C15ULL + static_cast<std::uint64_t>(kind);
  for (const std::uint64_t part : {position, token, head, dim}) {
    mixed = (mixed ^ part) * 0xBF58476D1CE4E5B9ULL;
    mixed ^= mixed >> 29;
  }
  return static_cast<std::byte>(mixed);
}

}  // namespace

LayoutShape make_shape(std::uint32_t tp_rank, std::uint32_t tp_size, std::uint32_t pages) {
  LayoutShape shape;
  shape.model_fingerprint = "model";
  shape.page_size_tokens = kPageTokens;
  shape.total_layers = 1;
  shape.total_kv_heads = kHeads;
  shape.head_dim = kHeadDim;
  shape.dtype = DType::kU8;
  shape.rank = {tp_rank, tp_size, 0, 1, 0, 1};
  shape.layers = {0, 1};
  shape.heads = {tp_rank * kHeads / tp_size, (tp_rank + 1) * kHeads / tp_size};
  const std::uint64_t item_bytes =
      std::uint64_t{kPageTokens} * (shape.heads.end - shape.heads.begin) * kHeadDim;
  shape.regions.push_back({RegionKind::kKey, 0, item_bytes, pages, MemoryKind::kHost});
  shape.regions.push_back({RegionKind::kValue, 0, item_bytes, pages, MemoryKind::kHost});
  shape.regions.push_back({RegionKind::kAux, 0, kAuxRecordBytes, kAuxSlots, MemoryKind::kHost});
  return shape;
}

EngineMemory::EngineMemory(const LayoutShape& shape) : shape_(shape) {
  for (const RegionShape& region : shape_.regions) {
    regions_.emplace_back(region.item_bytes * region.item_count, kCanary);
  }
}

std::span<std::byte> EngineMemory::item(RegionId region, std::uint32_t item) {
  const std::uint64_t size = shape_.regions.at(region.value()).item_bytes;
  return bytes(region, item * size, size);
}

std::span<std::byte> EngineMemory::bytes(RegionId region, std::uint64_t offset,
                                         std::uint64_t length) {
  return std::span(regions_.at(region.value())).subspan(offset, length);
}

template <typename Visit>
void EngineMemory::for_each_byte(std::uint32_t page, Visit visit) {
  for (std::uint32_t region = 0; region < shape_.regions.size(); ++region) {
    const RegionKind kind = shape_.regions[region].kind;
    if (!holds_pages(kind)) {
      continue;
    }
    const std::span<std::byte> memory = item(RegionId(region), page);
    std::size_t at = 0;
    for (std::uint32_t token = 0; token < kPageTokens; ++token) {
      for (std::uint32_t head = shape_.heads.begin; head < shape_.heads.end; ++head) {
        for (std::uint32_t dim = 0; dim < kHeadDim; ++dim) {
          visit(memory[at++], kind, token, head, dim);
        }
      }
    }
  }
}

void EngineMemory::fill_page(std::uint32_t page, std::uint32_t position, Binding binding) {
  for_each_byte(
      page, [&](std::byte& value, RegionKind kind, std::uint32_t token, std::uint32_t head,
                std::uint32_t dim) { value = content(binding, kind, position, token, head, dim); });
}

bool EngineMemory::holds_page(std::uint32_t page, std::uint32_t position, Binding binding) {
  bool equal = true;
  for_each_byte(page, [&](const std::byte& value, RegionKind kind, std::uint32_t token,
                          std::uint32_t head, std::uint32_t dim) {
    equal = equal && value == content(binding, kind, position, token, head, dim);
  });
  return equal;
}

void EngineMemory::paint_canary(std::uint32_t page) {
  for_each_byte(page, [](std::byte& value, auto...) { value = kCanary; });
}

bool EngineMemory::is_canary(std::uint32_t page) {
  bool untouched = true;
  for_each_byte(
      page, [&](const std::byte& value, auto...) { untouched = untouched && value == kCanary; });
  return untouched;
}

void EngineMemory::fill_aux(std::uint32_t slot, RoomId room, Binding binding) {
  for (std::uint32_t region = 0; region < shape_.regions.size(); ++region) {
    if (shape_.regions[region].kind == RegionKind::kAux) {
      wire::encode_aux(item(RegionId(region), slot), room, binding, AuxRecord{kFirstToken});
    }
  }
}

}  // namespace kvferry::core::fake
