#include "bench/transfer/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <numeric>
#include <utility>

#include "base/prng.h"

namespace kvferry::bench {
namespace {

constexpr std::uint32_t kMixLayers = 32;
constexpr std::uint64_t kMixPageBytes = 16 * 8 * 128 * 2;
constexpr std::uint32_t kMixPagesPerRoom = 4;
// Of all open grants, and of one: enough that a turn of grant, fence and next grant never leaves
// the source without work. A small pool has less, since there must be grants that are not open.
constexpr std::uint64_t kOpenBytes = 64U << 20;
constexpr std::uint64_t kLeastPoolBytes = 32U << 20;

std::uint64_t parse_size(std::string_view name) {
  std::uint64_t value = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data(), end, value);
  const std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  if (error != std::errc{} || value > (1U << 30)) return 0;
  if (unit.empty()) return value;
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  return 0;
}

}  // namespace

std::uint64_t Block::grant_bytes() const {
  return std::uint64_t{pages_per_grant} * region_count * page_bytes +
         (has_aux ? kAuxRecordBytes : 0);
}

Result<Block> make_block(std::string_view name, std::uint64_t pool_bytes,
                         std::uint32_t pages_per_grant) {
  Block block;
  block.name = std::string(name);
  if (name == kMixName) {
    block.region_count = 2 * kMixLayers;
    block.page_bytes = kMixPageBytes;
    block.has_aux = true;
  } else {
    block.page_bytes = parse_size(name);
    if (block.page_bytes < 512 || !std::has_single_bit(block.page_bytes)) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("block '{}' is neither {} nor a power of two of at least 512 bytes "
                              "(4K, 64K, 1M)",
                              name, kMixName));
    }
  }
  const std::uint64_t item_bytes = block.page_bytes * block.region_count;
  const std::uint64_t open_bytes = std::min(kOpenBytes, pool_bytes / 4);
  std::uint64_t grant_bytes = block.has_aux ? item_bytes * kMixPagesPerRoom : open_bytes / 4;
  if (pages_per_grant != 0) grant_bytes = item_bytes * std::bit_floor(pages_per_grant);
  if (!std::has_single_bit(pool_bytes) || pool_bytes < kLeastPoolBytes ||
      item_bytes > grant_bytes) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("a pool of {} bytes does not fit block {}: it must be a power of two "
                            "of at least {} bytes, and a block at most a sixteenth of it and {} "
                            "bytes",
                            pool_bytes, name, kLeastPoolBytes, kOpenBytes / 4));
  }
  block.page_count = static_cast<std::uint32_t>(pool_bytes / item_bytes);
  block.pages_per_grant = static_cast<std::uint32_t>(grant_bytes / item_bytes);
  block.grants_in_flight =
      static_cast<std::uint32_t>(std::max<std::uint64_t>(1, open_bytes / grant_bytes));
  return block;
}

std::vector<Region> regions_of(const Block& block, std::byte* base, std::uint64_t pool_bytes,
                               int memory_fd) {
  std::vector<Region> regions;
  for (std::uint32_t i = 0; i < block.region_count; ++i) {
    Region region;
    region.kind = i % 2 == 0 ? RegionKind::kKey : RegionKind::kValue;
    region.layer = i / 2;
    region.memory_fd_offset = i * (pool_bytes / block.region_count);
    region.base = base + region.memory_fd_offset;
    region.item_bytes = block.page_bytes;
    region.item_count = block.page_count;
    region.memory_fd = memory_fd;
    regions.push_back(region);
  }
  if (block.has_aux) {
    Region region;
    region.kind = RegionKind::kAux;
    region.memory_fd_offset = pool_bytes;
    region.base = base + pool_bytes;
    region.item_bytes = kAuxRecordBytes;
    region.item_count = kAuxAreaBytes / kAuxRecordBytes;
    region.memory_fd = memory_fd;
    regions.push_back(region);
  }
  return regions;
}

std::vector<std::uint32_t> scattered_order(std::uint32_t count) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  Prng prng(count);
  for (std::uint32_t i = count; i > 1; --i) {
    std::swap(order[i - 1], order[prng.below(i)]);
  }
  return order;
}

}  // namespace kvferry::bench
