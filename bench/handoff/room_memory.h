// The pages of one side of the bench, and what is written into them and looked for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/handoff/room_plan.h"
#include "data_plane/fd.h"
#include "kvferry/kv_args.h"
#include "kvferry/shared_pool.h"
#include "kvferry/status.h"

namespace kvferry::bench {

// Pages of K and V of each layer, then the aux records. Lane k has pages [k * n, (k + 1) * n) of
// every region, n = pages_per_room, and aux slot k.
class RoomMemory {
 public:
  static Result<RoomMemory> create(const HandoffSetup& setup);
  // The other side's memory, to read in place of its own: with the null transport the aux record
  // is where both look.
  static Result<RoomMemory> adopt(const HandoffSetup& setup, data_plane::Fd fd);
  RoomMemory(RoomMemory&& other) noexcept;
  RoomMemory& operator=(RoomMemory&&) = delete;
  ~RoomMemory();

  std::vector<Region> regions() const;
  int fd() const { return pool_ ? pool_->fd() : -1; }
  std::vector<PageIndex> pages_of(std::uint32_t lane) const;

  // --- one lane ---
  // What the room's pages hold at their source.
  void write(std::uint32_t lane, std::uint64_t room, Content content);
  // Pages of the lane that do not hold what the room's source did.
  std::uint32_t count_wrong(std::uint32_t lane, std::uint64_t room, Content content) const;
  // Marks the lane's pages as nobody's; until they are granted again no byte of them changes.
  void poison(std::uint32_t lane);
  std::uint32_t count_touched(std::uint32_t lane) const;

 private:
  RoomMemory(const HandoffSetup& setup, std::byte* base) : setup_(setup), base_(base) {}
  std::uint32_t page_regions() const { return setup_.layers * 2; }
  std::uint64_t region_bytes() const;
  std::uint64_t total_bytes() const;
  std::span<std::uint64_t> words(std::uint32_t region, std::uint32_t page) const;
  template <typename Visit>
  void for_each_item(std::uint32_t lane, Visit&& visit) const;

  HandoffSetup setup_;
  std::byte* base_ = nullptr;
  std::optional<SharedPool> pool_;
  void* adopted_ = nullptr;
};

}  // namespace kvferry::bench
