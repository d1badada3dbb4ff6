// The memory of one engine rank: real bytes. What a page of a request holds follows from (binding,
// engine epoch of the prefill, logical page, layer, token, head), so that ranks with other slices
// check the same content, and a mix of two requests, writers or launches differs from both.
//
// Belongs to a place, not to a process: what is written late finds the successor's pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/ids.h"
#include "kvferry/status.h"

namespace kvferry::sim {

inline constexpr std::byte kCanary{0xC5};

// One rank's share of an engine: tensor-parallel ranks split the heads (more ranks than heads share
// them), pipeline ranks split the layers.
struct EngineShape {
  std::uint32_t tp_size = 1;
  std::uint32_t pp_size = 1;
  std::uint32_t layers = 4;
  std::uint32_t heads = 4;
  std::uint32_t pages = 32;
  std::uint32_t aux_slots = 8;
  std::uint32_t state_slots = 0;  // 0: the model has no state
};
LayoutShape make_shape(const EngineShape& engine, std::uint32_t tp_rank, std::uint32_t pp_rank);

struct ContentKey {
  Binding binding;
  EngineEpoch engine_epoch;  // the prefill engine's
};

class EngineMemory {
 public:
  explicit EngineMemory(LayoutShape shape);

  const LayoutShape& shape() const { return shape_; }
  std::span<std::byte> item(RegionId region, std::uint32_t item);
  std::span<std::byte> bytes(RegionId region, std::uint64_t offset, std::uint64_t length);

  // position: the page's place in its request, decode's prefix included.
  void fill_page(PageIndex page, std::uint32_t position, const ContentKey& key);
  bool holds_page(PageIndex page, std::uint32_t position, const ContentKey& key);
  // Every region's bytes of the page set to value: the canary, or what decode appends.
  void paint_page(PageIndex page, std::byte value);
  bool is_painted(PageIndex page, std::byte value);
  void fill_state(std::uint32_t slot, std::uint32_t position, const ContentKey& key);
  bool holds_state(std::uint32_t slot, std::uint32_t position, const ContentKey& key);
  void paint_state(std::uint32_t slot, std::byte value);
  void fill_aux(std::uint32_t slot, RoomId room, Binding binding);
  void paint_aux(std::uint32_t slot, std::byte value);
  // Reads and checks the record as the runtime does.
  Status inspect_aux(std::uint32_t slot, RoomId room, Binding binding);

 private:
  template <typename Visit>
  void for_each_byte(std::uint32_t item, bool state, Visit visit);

  const LayoutShape shape_;
  std::vector<std::vector<std::byte>> regions_;
};

}  // namespace kvferry::sim
