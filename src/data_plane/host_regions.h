// The check of registered regions that the transports for host memory share.
#pragma once

#include <span>
#include <string_view>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::data_plane {

// Refuses memory that a processor can't copy, and sizes whose product does not fit 64 bits.
Status check_host_regions(std::span<const Region> regions, std::string_view transport);

}  // namespace kvferry::data_plane
