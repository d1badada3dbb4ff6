// What one measurement moves: pages of one size, scattered over a pool, in grants. Both workers
// make the same plan from the block's name and the pool's size, so that they need to tell each
// other only which grant is next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::bench {

struct Block {
  std::string name;                // as the user gave it
  std::uint64_t page_bytes = 0;    // of one page in one region
  std::uint32_t region_count = 1;  // regions that hold pages; they share the pool evenly
  std::uint32_t page_count = 0;    // in each region, a power of two
  std::uint32_t pages_per_grant = 0;
  std::uint32_t grants_in_flight = 0;
  bool has_aux = false;  // each grant also moves one aux record, as a room does

  std::uint32_t grant_count() const { return page_count / pages_per_grant; }
  std::uint64_t grant_bytes() const;
  // Blocks of page_bytes in the pool, whatever region they are in.
  std::uint32_t flat_count() const { return page_count * region_count; }
};

inline constexpr std::string_view kMixName = "kv-mix";
// Behind the pool's pages: the aux records, one for each grant in flight.
inline constexpr std::uint64_t kAuxAreaBytes = 64U << 10;

// name: a size such as 4K, 64K or 1M (a power of two), or kv-mix: 32 layers of K and V in regions
// of their own, pages of 16 tokens x 8 heads x 128 values of 2 bytes, rooms of 64 tokens and an aux
// record. pool_bytes is a power of two. Fails with the name when the pool can't hold enough of it.
// pages_per_grant other than 0 makes grants of that many pages instead.
Result<Block> make_block(std::string_view name, std::uint64_t pool_bytes,
                         std::uint32_t pages_per_grant = 0);

// The block's regions over a pool of pool_bytes and the aux area behind it.
std::vector<Region> regions_of(const Block& block, std::byte* base, std::uint64_t pool_bytes,
                               int memory_fd);

// 0 to count - 1 in an order that is the same in each process and scattered for every prefetcher.
std::vector<std::uint32_t> scattered_order(std::uint32_t count);

// The source page that goes to a target page. Each salt gives another assignment that reads every
// source page once, so that bytes of an earlier copy are not taken for those of a later one.
inline std::uint32_t source_page(std::uint32_t target_page, std::uint32_t salt,
                                 std::uint32_t count) {
  return (target_page * 0x9E3779B1U + salt * 0x85EBCA77U) & (count - 1);
}

}  // namespace kvferry::bench
