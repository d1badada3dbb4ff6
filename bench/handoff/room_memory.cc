#include "bench/handoff/room_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kPoison = 0xDEAD'BEEF'0BAD'F00DULL;

// The first of the words that an item of this room holds; they go up by an odd step.
std::uint64_t first_word(std::uint64_t room, std::uint32_t region, std::uint32_t page) {
  return room * 0x9E37'79B9'7F4A'7C15ULL + (std::uint64_t{region} << 32) + page;
}
constexpr std::uint64_t kStep = 0x1'0000'0001'0003ULL;

}  // namespace

std::uint64_t RoomMemory::region_bytes() const {
  return std::uint64_t{setup_.lanes} * setup_.pages_per_room * setup_.item_bytes;
}

std::uint64_t RoomMemory::total_bytes() const {
  return page_regions() * region_bytes() + std::uint64_t{setup_.lanes} * kAuxRecordBytes;
}

Result<RoomMemory> RoomMemory::create(const HandoffSetup& setup) {
  RoomMemory memory(setup, nullptr);
  auto pool = SharedPool::create(memory.total_bytes());
  if (!pool) return tl::unexpected(pool.error());
  memory.pool_.emplace(std::move(*pool));
  memory.base_ = memory.pool_->base();
  std::fill_n(memory.base_, memory.total_bytes(), std::byte{0});
  return memory;
}

Result<RoomMemory> RoomMemory::adopt(const HandoffSetup& setup, data_plane::Fd fd) {
  RoomMemory memory(setup, nullptr);
  void* base = ::mmap(nullptr, memory.total_bytes(), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return fail(FailureCode::kOperatingSystem,
                data_plane::errno_text("mmap of the other side's pages"));
  }
  memory.adopted_ = base;
  memory.base_ = static_cast<std::byte*>(base);
  return memory;
}

RoomMemory::RoomMemory(RoomMemory&& other) noexcept
    : setup_(other.setup_),
      base_(std::exchange(other.base_, nullptr)),
      pool_(std::move(other.pool_)),
      adopted_(std::exchange(other.adopted_, nullptr)) {
  other.pool_.reset();
}

RoomMemory::~RoomMemory() {
  if (adopted_ != nullptr) ::munmap(adopted_, total_bytes());
}

std::vector<Region> RoomMemory::regions() const {
  std::vector<Region> out;
  const std::uint32_t pages = setup_.lanes * setup_.pages_per_room;
  std::uint64_t offset = 0;
  const auto add = [&](RegionKind kind, std::uint32_t layer, std::uint64_t bytes,
                       std::uint32_t count) {
    Region region{kind, layer, base_ + offset, bytes, count, MemoryKind::kHost};
    region.memory_fd = fd();
    region.memory_fd_offset = pool_ ? offset : 0;
    out.push_back(region);
    offset += bytes * count;
  };
  for (std::uint32_t i = 0; i < page_regions(); ++i) {
    add(i < setup_.layers ? RegionKind::kKey : RegionKind::kValue, i % setup_.layers,
        setup_.item_bytes, pages);
  }
  add(RegionKind::kAux, 0, kAuxRecordBytes, setup_.lanes);
  return out;
}

std::vector<PageIndex> RoomMemory::pages_of(std::uint32_t lane) const {
  std::vector<PageIndex> pages;
  pages.reserve(setup_.pages_per_room);
  for (std::uint32_t i = 0; i < setup_.pages_per_room; ++i) {
    pages.emplace_back(lane * setup_.pages_per_room + i);
  }
  return pages;
}

std::span<std::uint64_t> RoomMemory::words(std::uint32_t region, std::uint32_t page) const {
  std::byte* item = base_ + region * region_bytes() + std::uint64_t{page} * setup_.item_bytes;
  return {reinterpret_cast<std::uint64_t*>(item), setup_.item_bytes / sizeof(std::uint64_t)};
}

// visit(words, region, page of the room)
template <typename Visit>
void RoomMemory::for_each_item(std::uint32_t lane, Visit&& visit) const {
  for (std::uint32_t region = 0; region < page_regions(); ++region) {
    for (std::uint32_t page = 0; page < setup_.pages_per_room; ++page) {
      visit(words(region, lane * setup_.pages_per_room + page), region, page);
    }
  }
}

void RoomMemory::write(std::uint32_t lane, std::uint64_t room, Content content) {
  if (content == Content::kNone) return;
  for_each_item(lane,
                [&](std::span<std::uint64_t> words, std::uint32_t region, std::uint32_t page) {
                  std::uint64_t word = first_word(room, region, page);
                  if (content == Content::kStamp) words = words.first(1);
                  for (std::uint64_t& each : words) {
                    each = word;
                    word += kStep;
                  }
                });
}

std::uint32_t RoomMemory::count_wrong(std::uint32_t lane, std::uint64_t room,
                                      Content content) const {
  std::uint32_t wrong = 0;
  if (content == Content::kNone) return wrong;
  for_each_item(lane,
                [&](std::span<std::uint64_t> words, std::uint32_t region, std::uint32_t page) {
                  std::uint64_t word = first_word(room, region, page);
                  if (content == Content::kStamp) words = words.first(1);
                  bool differs = false;
                  for (const std::uint64_t each : words) {
                    differs = differs || each != word;
                    word += kStep;
                  }
                  wrong += differs ? 1 : 0;
                });
  return wrong;
}

void RoomMemory::poison(std::uint32_t lane) {
  for_each_item(lane, [](std::span<std::uint64_t> words, std::uint32_t, std::uint32_t) {
    std::fill(words.begin(), words.end(), kPoison);
  });
}

std::uint32_t RoomMemory::count_touched(std::uint32_t lane) const {
  std::uint32_t touched = 0;
  for_each_item(lane, [&](std::span<std::uint64_t> words, std::uint32_t, std::uint32_t) {
    touched +=
        std::any_of(words.begin(), words.end(), [](std::uint64_t word) { return word != kPoison; })
            ? 1
            : 0;
  });
  return touched;
}

}  // namespace kvferry::bench
