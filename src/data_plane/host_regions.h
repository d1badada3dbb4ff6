// The check of registered regions that the transports for host memory share.
#pragma once

#include <span>
#include <string_view>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::data_plane {

// Refuses more regions than kMaxRegions, memory that a processor can't copy, sizes whose product
// does not fit 64 bits, and two regions that overlap.
Status check_host_regions(std::span<const Region> regions, std::string_view transport);

// For regions that another process may be asked to map: refuses a memory_fd that is no memfd or in
// which the region does not lie whole. Its seals are judged by whoever maps it.
Status check_memory_files(std::span<const Region> regions);

}  // namespace kvferry::data_plane
