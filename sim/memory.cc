#include "sim/memory.h"

#include <algorithm>
#include <utility>

#include "wire/aux_record.h"

namespace kvferry::sim {
namespace {

constexpr std::uint32_t kPageTokens = 2;
constexpr std::uint64_t kStateBytes = 8;
constexpr std::int32_t kFirstToken = 11;
constexpr std::uint32_t kVocabulary = 100;

// Eight bytes of content at once: one for each of up to eight heads of one token.
std::uint64_t content_word(const ContentKey& key, const RegionShape& region, std::uint32_t position,
                           std::uint32_t token) {
  std::uint64_t mixed = key.binding.low ^ (key.binding.high * 0x9E3779B97F4A7C15ULL) ^
                        (key.engine_epoch.value() * 0xD6E8FEB86659FD93ULL);
  const std::uint64_t place = (static_cast<std::uint64_t>(region.kind) << 56) |
                              (std::uint64_t{region.layer} << 48) | (std::uint64_t{token} << 40) |
                              position;
  for (const std::uint64_t part : {place, mixed}) {
    mixed = (mixed ^ part) * 0xBF58476D1CE4E5B9ULL;
    mixed ^= mixed >> 29;
  }
  return mixed;
}

std::byte byte_of(std::uint64_t word, std::uint32_t index) {
  return static_cast<std::byte>(word >> (8 * (index % 8)));
}

}  // namespace

LayoutShape make_shape(const EngineShape& engine, std::uint32_t tp_rank, std::uint32_t pp_rank) {
  LayoutShape shape;
  shape.model_fingerprint = "model";
  shape.page_size_tokens = kPageTokens;
  shape.total_layers = engine.layers;
  shape.total_kv_heads = engine.heads;
  shape.head_dim = 1;
  shape.dtype = DType::kU8;
  shape.rank = {tp_rank, engine.tp_size, pp_rank, engine.pp_size, 0, 1};
  shape.layers = {pp_rank * engine.layers / engine.pp_size,
                  (pp_rank + 1) * engine.layers / engine.pp_size};
  const std::uint32_t first_head = tp_rank * engine.heads / engine.tp_size;
  shape.heads = {first_head,
                 std::max(first_head + 1, (tp_rank + 1) * engine.heads / engine.tp_size)};
  const std::uint64_t item_bytes =
      std::uint64_t{kPageTokens} * (shape.heads.end - shape.heads.begin);
  for (std::uint32_t layer = shape.layers.begin; layer < shape.layers.end; ++layer) {
    shape.regions.push_back({RegionKind::kKey, layer, item_bytes, engine.pages, MemoryKind::kHost});
  }
  shape.regions.push_back(
      {RegionKind::kAux, 0, kAuxRecordBytes, engine.aux_slots, MemoryKind::kHost});
  if (engine.state_slots > 0 && shape.layers.begin == 0) {
    shape.regions.push_back(
        {RegionKind::kState, 0, kStateBytes, engine.state_slots, MemoryKind::kHost});
  }
  return shape;
}

EngineMemory::EngineMemory(LayoutShape shape) : shape_(std::move(shape)) {
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

// visit(byte, region, token, head); a state item is one token of eight heads.
template <typename Visit>
void EngineMemory::for_each_byte(std::uint32_t number, bool state, Visit visit) {
  for (std::uint32_t id = 0; id < shape_.regions.size(); ++id) {
    const RegionShape& region = shape_.regions[id];
    if (state ? region.kind != RegionKind::kState : !holds_pages(region.kind)) {
      continue;
    }
    const std::span<std::byte> memory = item(RegionId(id), number);
    const std::uint32_t first = state ? 0 : shape_.heads.begin;
    const std::uint32_t width =
        state ? static_cast<std::uint32_t>(kStateBytes) : shape_.heads.end - shape_.heads.begin;
    for (std::uint32_t at = 0; at < memory.size(); ++at) {
      visit(memory[at], region, at / width, first + at % width);
    }
  }
}

void EngineMemory::fill_page(PageIndex page, std::uint32_t position, const ContentKey& key) {
  for_each_byte(
      page.value(), false,
      [&](std::byte& value, const RegionShape& region, std::uint32_t token, std::uint32_t head) {
        value = byte_of(content_word(key, region, position, token), head);
      });
}

bool EngineMemory::holds_page(PageIndex page, std::uint32_t position, const ContentKey& key) {
  bool equal = true;
  for_each_byte(page.value(), false,
                [&](const std::byte& value, const RegionShape& region, std::uint32_t token,
                    std::uint32_t head) {
                  equal =
                      equal && value == byte_of(content_word(key, region, position, token), head);
                });
  return equal;
}

void EngineMemory::paint_page(PageIndex page, std::byte value) {
  for_each_byte(page.value(), false, [&](std::byte& at, auto&&...) { at = value; });
}

bool EngineMemory::is_painted(PageIndex page, std::byte value) {
  bool equal = true;
  for_each_byte(page.value(), false,
                [&](const std::byte& at, auto&&...) { equal = equal && at == value; });
  return equal;
}

void EngineMemory::fill_state(std::uint32_t slot, std::uint32_t position, const ContentKey& key) {
  for_each_byte(
      slot, true,
      [&](std::byte& value, const RegionShape& region, std::uint32_t token, std::uint32_t head) {
        value = byte_of(content_word(key, region, position, token), head);
      });
}

bool EngineMemory::holds_state(std::uint32_t slot, std::uint32_t position, const ContentKey& key) {
  bool equal = true;
  for_each_byte(slot, true,
                [&](const std::byte& value, const RegionShape& region, std::uint32_t token,
                    std::uint32_t head) {
                  equal =
                      equal && value == byte_of(content_word(key, region, position, token), head);
                });
  return equal;
}

void EngineMemory::paint_state(std::uint32_t slot, std::byte value) {
  for_each_byte(slot, true, [&](std::byte& at, auto&&...) { at = value; });
}

void EngineMemory::fill_aux(std::uint32_t slot, RoomId room, Binding binding) {
  for (std::uint32_t id = 0; id < shape_.regions.size(); ++id) {
    if (shape_.regions[id].kind == RegionKind::kAux) {
      AuxRecord record;
      record.first_token = kFirstToken;
      wire::encode_aux(item(RegionId(id), slot), room, binding, record);
    }
  }
}

void EngineMemory::paint_aux(std::uint32_t slot, std::byte value) {
  for (std::uint32_t id = 0; id < shape_.regions.size(); ++id) {
    if (shape_.regions[id].kind == RegionKind::kAux) {
      std::ranges::fill(item(RegionId(id), slot), value);
    }
  }
}

Status EngineMemory::inspect_aux(std::uint32_t slot, RoomId room, Binding binding) {
  for (std::uint32_t id = 0; id < shape_.regions.size(); ++id) {
    if (shape_.regions[id].kind == RegionKind::kAux) {
      const auto record = wire::decode_aux(item(RegionId(id), slot), room, binding, kVocabulary);
      return record ? Status{} : Status(tl::unexpected(record.error()));
    }
  }
  return fail(FailureCode::kAuxInvalid, "this rank has no aux region");
}

}  // namespace kvferry::sim
