// Writes of a writer that never stops and never learns: under the present, the last and the one
// before last generation of each slot, whatever it is answered. Slot n is granted page n.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "rig.h"

namespace kvferry::data_plane {

class StaleWrites {
 public:
  static constexpr std::uint32_t kSlots = 8;
  // Pieces rather than pages, so that a live grant has something left to claim.
  static constexpr std::uint64_t kPiecesPerItem = 8;

  StaleWrites(const Shape& shape, std::uint64_t seed) : shape_(shape), prng_(seed) {}

  // From any thread: the slot's grant that is open now.
  void set_generation(std::uint32_t slot, std::uint64_t generation) {
    generations_[slot] = generation;
  }
  // Tickets count up from 1.
  std::vector<layout::Write> next(std::size_t count) {
    std::vector<layout::Write> writes(count);
    const std::uint64_t piece = shape_.item_bytes / kPiecesPerItem;
    for (layout::Write& write : writes) {
      const auto slot = static_cast<std::uint32_t>(prng_.below(kSlots));
      const std::uint64_t now = generations_[slot];
      const std::uint64_t back = prng_.below(3);
      const auto region = static_cast<std::uint32_t>(prng_.below(shape_.regions));
      write.ticket = TicketId(++tickets_);
      write.slot = GrantSlot(slot);
      write.generation = Generation(now > back ? now - back : 0);
      write.source_region = RegionId(region);
      write.source_offset = slot * shape_.item_bytes;
      write.target_region = RegionId(region);
      write.target_item = slot;
      write.offset_in_item = prng_.below(kPiecesPerItem) * piece;
      write.length = piece;
    }
    return writes;
  }

 private:
  const Shape shape_;
  Prng prng_;
  std::uint64_t tickets_ = 0;
  std::array<std::atomic<std::uint64_t>, kSlots> generations_{};
};

// Grants, fences and refills the pages of a session whose writer posts StaleWrites, so many times.
// Returns how many pages changed after their fence, or nothing when a grant got no landing or a
// fence did not end. set_generation(slot, generation) tells the writer of a new grant.
template <typename SetGeneration>
std::optional<std::uint64_t> late_pages(Rig& rig, std::uint64_t session, std::uint64_t releases,
                                        SetGeneration&& set_generation) {
  constexpr std::uint32_t kSlots = StaleWrites::kSlots;
  std::uint64_t late = 0;
  for (std::uint64_t i = 0; i < releases; ++i) {
    const auto slot = static_cast<std::uint32_t>(i % kSlots);
    const std::uint64_t generation = i / kSlots + 1;
    rig.grant(i + 1, session, slot, generation, {slot});
    set_generation(slot, generation);
    // The grant is released when some of its writes have landed, thus with others on their way.
    const bool has_landed = rig.target_sink().wait([&](const auto& state) {
      return state.landed_lives.contains({slot, generation});
    });
    if (!has_landed || !rig.fence(i + 1)) return std::nullopt;
    for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
      const auto item = rig.target_pool().item(region, slot);
      std::fill(item.begin(), item.end(), std::byte{static_cast<std::uint8_t>(i)});
    }
    // Looked at again after the other slots had their turn.
    if (i + 1 < kSlots) continue;
    const auto oldest = static_cast<std::uint32_t>((i + 1) % kSlots);
    const std::byte theirs{static_cast<std::uint8_t>(i + 1 - kSlots)};
    for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
      late += rig.item_is(region, oldest, theirs) ? 0 : 1;
    }
  }
  return late;
}

}  // namespace kvferry::data_plane
