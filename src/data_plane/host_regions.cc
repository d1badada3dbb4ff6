#include "data_plane/host_regions.h"

#include <string>

namespace kvferry::data_plane {

Status check_host_regions(std::span<const Region> regions, std::string_view transport) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    const std::string name = "region " + std::to_string(i);
    if (region.memory != MemoryKind::kHost) {
      return fail(FailureCode::kInvalidArgument,
                  name + " is device memory, which the " + std::string(transport) +
                      " transport can't move; it moves host memory (stage the region there), and "
                      "device memory needs a transport that moves_device_memory");
    }
    if (region.base == nullptr || region.item_bytes == 0 || region.item_count == 0) {
      return fail(FailureCode::kInvalidArgument, name + " has no memory");
    }
    if (region.item_bytes > ~std::uint64_t{0} / region.item_count) {
      return fail(FailureCode::kInvalidArgument, name + " is larger than an address space");
    }
  }
  return {};
}

}  // namespace kvferry::data_plane
