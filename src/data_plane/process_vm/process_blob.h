// What a source knows of the memory it writes to: the process and the addresses of each region. It
// stands where other transports' blobs stand, but a target that speaks kvferry does not make it:
// whoever speaks another protocol to the target puts it together of what that protocol says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data_plane/process_vm/remote_process.h"

namespace kvferry::data_plane {

// A region at the target. Most are one buffer with the region's items. A region may also lie in
// several buffers, each with items of its own size: then the source's item is taken apart
// (ItemSplit, process_vm_transport.h), one part for each buffer.
struct ProcessRegion {
  std::vector<std::uint64_t> pointers;    // of the first item of each buffer
  std::vector<std::uint32_t> part_bytes;  // of an item of each buffer; empty: one buffer, whole
  friend bool operator==(const ProcessRegion&, const ProcessRegion&) = default;
};

struct ProcessBlob {
  ProcessName process;
  std::vector<ProcessRegion> regions;  // in RegionId order
  friend bool operator==(const ProcessBlob&, const ProcessBlob&) = default;
};

inline constexpr std::size_t kMaxRegionBuffers = 64;

std::vector<std::uint8_t> encode(const ProcessBlob& blob);
// Fails with kMalformed; sizes nothing by a number that the bytes do not bear out.
Result<ProcessBlob> decode_process_blob(std::span<const std::uint8_t> bytes);

}  // namespace kvferry::data_plane
