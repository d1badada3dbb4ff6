// What the pages of a drill hold, so that a byte out of place says whose it is. Each 8-byte word of
// a page is a hash of room, binding, component (keys or values of a layer), the page's place in the
// prompt and the word's offset, all of them the model's and not a rank's: what a rank holds of a
// page is the same wherever it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvferry/ids.h"

namespace kvferry::lab {

// What a page holds while nobody has written to it.
inline constexpr std::byte kGranted{0xA5};
inline constexpr std::byte kReturned{0x5A};

struct PageName {
  RoomId room;
  Binding binding;
  std::uint32_t component = 0;
  std::uint32_t logical_page = 0;
  std::uint64_t first_offset = 0;  // of the bytes at hand in the component
};

// Sizes and offsets are multiples of eight.
void fill_words(std::span<std::byte> page, const PageName& name);
// Bytes that are not as fill_words left them, counted in whole words.
std::uint64_t wrong_bytes(std::span<const std::byte> page, const PageName& name);
// Bytes that are neither as fill_words left them nor the paint nor zero, which is what a frame that
// was given up in mid-way is filled up with. A word may be partly of each.
std::uint64_t foreign_bytes(std::span<const std::byte> page, const PageName& name, std::byte paint);
// Bytes that differ from the paint, counted in whole words.
std::uint64_t unpainted_bytes(std::span<const std::byte> page, std::byte paint);

}  // namespace kvferry::lab
