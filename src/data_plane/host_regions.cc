#include "data_plane/host_regions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "data_plane/fd.h"

namespace kvferry::data_plane {
namespace {

tl::unexpected<Failure> refuse(std::string what) {
  return fail(FailureCode::kInvalidArgument, std::move(what));
}

std::uint64_t begin_of(const Region& region) {
  return reinterpret_cast<std::uintptr_t>(region.base);
}
std::uint64_t bytes_of(const Region& region) { return region.item_bytes * region.item_count; }

std::string describe(const Region& region, std::size_t index) {
  return fmt::format("region {} ({} bytes from {:#x})", index, bytes_of(region), begin_of(region));
}

// Each region by itself is sound.
Status check_overlap(std::span<const Region> regions) {
  std::vector<std::size_t> order(regions.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return begin_of(regions[a]) < begin_of(regions[b]);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Region& lower = regions[order[i - 1]];
    const Region& upper = regions[order[i]];
    if (begin_of(upper) - begin_of(lower) >= bytes_of(lower)) continue;
    const auto [first, second] = std::minmax(order[i - 1], order[i]);
    return refuse(fmt::format("{} overlaps {}", describe(regions[first], first),
                              describe(regions[second], second)));
  }
  return {};
}

}  // namespace

Status check_host_regions(std::span<const Region> regions, std::string_view transport) {
  if (regions.size() > kMaxRegions) {
    return refuse(fmt::format("{} regions, allowed are {}", regions.size(), kMaxRegions));
  }
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    if (region.memory != MemoryKind::kHost) {
      return refuse(fmt::format(
          "region {} is device memory, which the {} transport can't move; it moves host memory "
          "(stage the region there), and device memory needs a transport that moves_device_memory",
          i, transport));
    }
    if (region.base == nullptr || region.item_bytes == 0 || region.item_count == 0) {
      return refuse(fmt::format("region {} has no memory", i));
    }
    const std::uint64_t room = ~std::uint64_t{0} - begin_of(region);
    if (region.item_bytes > room / region.item_count) {
      return refuse(fmt::format("region {} is larger than an address space", i));
    }
  }
  return check_overlap(regions);
}

Status check_memory_files(std::span<const Region> regions) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    if (region.memory_fd < 0) continue;
    if (::fcntl(region.memory_fd, F_GET_SEALS) < 0) {
      return refuse(fmt::format("region {}: memory_fd {} is no memfd: {}", i, region.memory_fd,
                                errno_text("F_GET_SEALS")));
    }
    struct stat file {};
    if (::fstat(region.memory_fd, &file) != 0) {
      return refuse(fmt::format("region {}: {}", i, errno_text("fstat")));
    }
    const auto size = static_cast<std::uint64_t>(file.st_size);
    if (region.memory_fd_offset > size || bytes_of(region) > size - region.memory_fd_offset) {
      return refuse(fmt::format(
          "region {}: {} bytes at memory_fd_offset {} do not lie in a memfd of {} bytes", i,
          bytes_of(region), region.memory_fd_offset, size));
    }
  }
  return {};
}

}  // namespace kvferry::data_plane
