// The pages of a rank of a drill: real memory, the allocator of an engine that hands out the lowest
// free page first, and paint that shows who wrote where.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/shared_pool.h"
#include "lab/rank/content.h"

namespace kvferry::lab {

// What of each page a rank holds: pp ranks share the layers out, tp ranks the heads.
struct PagePart {
  std::uint32_t layers = 1;  // of the model
  std::uint32_t heads = 1;
  RankCoordinates rank;
  Role role = Role::kDecode;
};

// Threads: one.
class RankPages {
 public:
  // page_bytes is that of keys and values of all layers and heads together, a multiple of 256 times
  // both.
  static Result<RankPages> make(std::uint32_t pages, std::uint32_t page_bytes,
                                std::uint32_t aux_slots, const PagePart& part = {});

  // Role, regions, layout, page size and rank; the caller adds the instance.
  KvArgs args() const;

  // The lowest free ones, or with a stride those that are so far apart, painted kGranted. Nothing
  // when there are not enough. bare: nobody looks at them, so that they cost no paint, here and
  // when they come back.
  std::optional<std::vector<PageIndex>> take(std::uint32_t count, std::uint32_t stride, bool bare);
  // Painted kReturned.
  void give_back(std::span<const PageIndex> pages, bool bare);
  std::optional<std::uint32_t> take_aux();
  void give_back_aux(std::int64_t slot);  // -1: none

  void fill(std::span<const PageIndex> pages, RoomId room, Binding binding);
  std::uint64_t wrong(std::span<const PageIndex> pages, RoomId room, Binding binding) const;
  // Bytes of a room's granted pages that are neither painted nor what its sender had there, nor
  // zero.
  std::uint64_t foreign(std::span<const PageIndex> pages, RoomId room, Binding binding) const;
  // Bytes of free pages that somebody wrote to since they came back, by page; they are painted
  // again. take() looks, too, and remembers for the next call.
  std::map<std::uint32_t, std::uint64_t> take_spoiled();

  std::size_t free_pages() const { return free_.size(); }
  std::size_t free_aux() const { return free_aux_.size(); }
  // Regions that have an item for each page; aux lies behind them.
  std::uint32_t components() const { return 2 * own_layers(); }

 private:
  RankPages(SharedPool memory, const PagePart& part) : memory_(std::move(memory)), part_(part) {}
  std::uint32_t own_layers() const { return part_.layers / part_.rank.pp_size; }
  std::uint32_t own_heads() const { return part_.heads / part_.rank.tp_size; }
  bool is_source() const { return part_.role == Role::kPrefill; }
  std::span<std::byte> item(std::uint32_t component, PageIndex page) const;
  // Each stretch of the page that is one in the model's page, too.
  template <typename Visit>
  void for_each_stretch(std::uint32_t component, PageIndex page, Visit visit) const;
  // Adds up what count(bytes, name) says of each stretch of the room's pages.
  template <typename Count>
  std::uint64_t add_up(std::span<const PageIndex> pages, RoomId room, Binding binding,
                       Count count) const;
  void paint(PageIndex page, std::byte with);
  void inspect(PageIndex page);

  SharedPool memory_;
  PagePart part_;
  std::uint32_t pages_ = 0;
  std::uint32_t item_bytes_ = 0;  // of this rank's heads
  std::uint32_t aux_slots_ = 0;
  std::set<std::uint32_t> free_;
  std::set<std::uint32_t> free_aux_;
  std::map<std::uint32_t, std::uint64_t> spoiled_;
};

}  // namespace kvferry::lab
