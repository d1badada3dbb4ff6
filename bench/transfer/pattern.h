// Content by which a copied page can be told from any other: each word of the source pool is a
// function of its place in the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvferry::bench {

// bytes starts at pool_offset of the pool; both are multiples of 8.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t pool_offset);
bool holds_pattern(std::span<const std::byte> bytes, std::uint64_t pool_offset);

}  // namespace kvferry::bench
