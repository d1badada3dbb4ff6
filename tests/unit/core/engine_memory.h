// The memory of one fake engine rank: real bytes, filled and checked by logical position, so that a
// copy between ranks of different head slices is checked as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/ids.h"

namespace kvferry::core::fake {

inline constexpr std::byte kCanary{0xC5};

// One layer, two heads, pages of two tokens, one byte per value; an aux region with eight slots.
LayoutShape make_shape(std::uint32_t tp_rank, std::uint32_t tp_size, std::uint32_t pages);

class EngineMemory {
 public:
  explicit EngineMemory(const LayoutShape& shape);

  std::span<std::byte> item(RegionId region, std::uint32_t item);
  std::span<std::byte> bytes(RegionId region, std::uint64_t offset, std::uint64_t length);

  // position: the page's place in its request, from which its content follows.
  void fill_page(std::uint32_t page, std::uint32_t position, Binding binding);
  bool holds_page(std::uint32_t page, std::uint32_t position, Binding binding);
  void paint_canary(std::uint32_t page);
  bool is_canary(std::uint32_t page);
  void fill_aux(std::uint32_t slot, RoomId room, Binding binding);

 private:
  template <typename Visit>
  void for_each_byte(std::uint32_t page, Visit visit);

  const LayoutShape shape_;
  std::vector<std::vector<std::byte>> regions_;
};

}  // namespace kvferry::core::fake
