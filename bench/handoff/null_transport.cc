#include "bench/handoff/null_transport.h"

namespace kvferry::bench {

std::vector<data_plane::TransportCounter> NullTransport::counters() const {
  return {{"null_writes", writes_.load(std::memory_order_relaxed)}};
}

Status NullTransport::register_regions(std::span<const Region> regions) {
  regions_.assign(regions.begin(), regions.end());
  return {};
}

void NullTransport::open_grant(GrantId, std::vector<data_plane::SlotGrant> slots) {
  landings_.clear();
  for (const data_plane::SlotGrant& slot : slots) land(slot);
  sink_.writes_landed(landings_);
}

void NullTransport::land(const data_plane::SlotGrant& slot) {
  const std::span<const PageIndex> pages = slot.extent.pages();
  const auto add = [&](std::uint32_t region, std::uint32_t item) {
    landings_.push_back({slot.session, slot.slot, slot.generation, TicketId{}, RegionId(region),
                         item, 0, regions_[region].item_bytes});
  };
  if (pages.empty()) return;
  for (std::uint32_t region = 0; region < regions_.size(); ++region) {
    const bool is_aux = regions_[region].kind == RegionKind::kAux;
    const std::uint32_t first = pages.front().value() / (is_aux ? pages_per_room_ : 1);
    // A region is this writer's with all of its pages or not at all.
    if (!slot.extent.contains(RegionId(region), first, 0, regions_[region].item_bytes)) continue;
    for (std::size_t i = 0; i < (is_aux ? 1 : pages.size()); ++i) {
      add(region, is_aux ? first : pages[i].value());
    }
  }
}

void NullTransport::post(SessionEpoch session, std::span<const layout::Write> writes) {
  completions_.clear();
  for (const layout::Write& write : writes) {
    completions_.push_back({session, write.ticket, layout::WriteOutcome::kLanded});
  }
  writes_.fetch_add(writes.size(), std::memory_order_relaxed);
  sink_.writes_completed(completions_);
}

}  // namespace kvferry::bench
