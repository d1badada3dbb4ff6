#include "lab/rank/content.h"

#include <array>
#include <cstring>

namespace kvferry::lab {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31U);
}

std::uint64_t seed_of(const PageName& name) {
  std::uint64_t seed = mix(name.room.value() + 1);
  seed = mix(seed ^ name.binding.high);
  seed = mix(seed ^ name.binding.low);
  return mix(seed ^ (std::uint64_t{name.component} << 32U | name.logical_page));
}

std::uint64_t word_at(std::span<const std::byte> page, std::size_t offset) {
  std::uint64_t word = 0;
  std::memcpy(&word, page.data() + offset, kWord);
  return word;
}

}  // namespace

void fill_words(std::span<std::byte> page, const PageName& name) {
  const std::uint64_t seed = seed_of(name);
  for (std::size_t offset = 0; offset + kWord <= page.size(); offset += kWord) {
    const std::uint64_t word = mix(seed + name.first_offset + offset);
    std::memcpy(page.data() + offset, &word, kWord);
  }
}

std::uint64_t wrong_bytes(std::span<const std::byte> page, const PageName& name) {
  const std::uint64_t seed = seed_of(name);
  std::uint64_t wrong = 0;
  for (std::size_t offset = 0; offset + kWord <= page.size(); offset += kWord) {
    if (word_at(page, offset) != mix(seed + name.first_offset + offset)) wrong += kWord;
  }
  return wrong;
}

std::uint64_t foreign_bytes(std::span<const std::byte> page, const PageName& name,
                            std::byte paint) {
  const std::uint64_t seed = seed_of(name);
  std::uint64_t painted = 0;
  std::memset(&painted, std::to_integer<int>(paint), sizeof painted);
  std::uint64_t foreign = 0;
  for (std::size_t offset = 0; offset + kWord <= page.size(); offset += kWord) {
    const std::uint64_t word = word_at(page, offset);
    if (word == painted) continue;
    const std::uint64_t own = mix(seed + name.first_offset + offset);
    if (word == own) continue;
    std::array<std::byte, kWord> bytes{};
    std::memcpy(bytes.data(), &own, kWord);
    for (std::size_t i = 0; i < kWord; ++i) {
      const std::byte is = page[offset + i];
      foreign += is != bytes[i] && is != paint && is != std::byte{0} ? 1 : 0;
    }
  }
  return foreign;
}

std::uint64_t unpainted_bytes(std::span<const std::byte> page, std::byte paint) {
  std::uint64_t painted = 0;
  std::memset(&painted, std::to_integer<int>(paint), sizeof painted);
  std::uint64_t wrong = 0;
  for (std::size_t offset = 0; offset + kWord <= page.size(); offset += kWord) {
    if (word_at(page, offset) != painted) wrong += kWord;
  }
  return wrong;
}

}  // namespace kvferry::lab
