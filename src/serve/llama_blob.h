// The blob in which llama.cpp v0.5.0 hands over one sequence's state, translated to and from plain
// KV rows. Pure: bytes in, bytes out.
//
// Layout, little-endian, of a cache with one stream and untransposed V:
//   u32 magic, i32 sequence, u32 streams (1), u32 cells,
//   cells x {i32 position, u32 sequences (1), i32 sequence},
//   u32 v_transposed (0), u32 layers,
//   layers x {i32 type, u64 row bytes, cells x row}   keys
//   layers x {i32 type, u64 row bytes, cells x row}   values
// Cells stand in the order of the cache, which need not be the order of positions. The blob names
// no model and has no checksum, so everything in it is compared with what this engine expects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvferry/status.h"

namespace kvferry::serve {

struct BlobShape {
  std::uint32_t layers = 0;
  std::uint32_t row_bytes = 0;  // of one token in one layer, equal for K and V
  std::int32_t type = 0;        // ggml_type of both
  friend bool operator==(const BlobShape&, const BlobShape&) = default;
};

std::size_t blob_bytes(const BlobShape& shape, std::uint32_t cells);

// Reads the shape out of a blob of one cell; refuses a cache whose K and V rows differ or vary by
// layer, and one whose V is transposed.
Result<BlobShape> probe_blob(std::span<const std::byte> blob);

// Copies the rows of positions [first, first + count) into the regions, K regions first; the row of
// position p goes to row p - first. Refuses a blob that holds other positions or another shape.
Status scatter_blob(std::span<const std::byte> blob, const BlobShape& shape, std::uint32_t first,
                    std::uint32_t count, std::span<std::byte* const> regions);

// Builds the blob of positions [first, first + count) of the given sequence from the regions' rows.
void gather_blob(const BlobShape& shape, std::int32_t sequence, std::uint32_t first,
                 std::uint32_t count, std::span<std::byte* const> regions,
                 std::vector<std::byte>& blob);

}  // namespace kvferry::serve
