#include "bench/transfer/transport_target.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/prng.h"
#include "bench/transfer/fenced_run.h"
#include "bench/transfer/flat_order.h"
#include "bench/transfer/lost_run.h"
#include "bench/transfer/pattern.h"
#include "bench/transfer/transport_engine.h"
#include "data_plane/factory.h"

namespace kvferry::bench {

Status TransportTarget::prepare(const Block& block, Channel& source) {
  transport_.reset();
  sink_ = std::make_unique<TargetSink>(block.grants_in_flight);
  plan(block);
  const auto regions = regions_of(block, pool_.base, pool_.bytes, -1);
  auto made = data_plane::make_transport(name_, transport_config(Role::kDecode, setup_), *sink_);
  if (!made) return tl::unexpected(made.error());
  transport_ = std::move(*made);
  if (auto registered = transport_->register_regions(regions); !registered) return registered;

  std::array<std::uint8_t, 32> secret{};
  fill_random(secret);
  epoch_ = SessionEpoch(random_u64() | 1);
  Message address{Kind::kAddress, {epoch_.value()}, std::string(secret.begin(), secret.end()), {}};
  address.text += blob();
  if (auto sent = source.send(address); !sent) return sent;
  auto answer = source.expect(Kind::kAddress, kPatience);
  if (!answer) return tl::unexpected(answer.error());
  auto opened = transport_->open_session(make_link(Role::kDecode, epoch_, secret, answer->text,
                                                   regions_of(block, nullptr, pool_.bytes, -1)));
  if (!opened) return opened;
  return source.send({Kind::kOpen, {}, {}, {}});
}

std::string TransportTarget::blob() const {
  const auto bytes = transport_->local_blob();
  return {bytes.begin(), bytes.end()};
}

Result<RunResult> TransportTarget::run(const RunOrder& order, Channel& source) {
  first_salt_ = next_salt_;
  for (std::uint32_t slot = 0; slot < block_.grants_in_flight; ++slot) {
    if (auto opened = open_next(slot, source); !opened) return tl::unexpected(opened.error());
  }
  switch (order.mode) {
    case RunMode::kFencing:
    case RunMode::kFenceCheck:
      return FencedRun(*this, order).run(source);
    case RunMode::kSourceLost:
      return LostRun(*this).run(source);
    case RunMode::kPlain:
    case RunMode::kTargetLost:
    case RunMode::kBesideStopped:
      break;
  }
  return run_plain(order, source);
}

Result<RunResult> TransportTarget::run_plain(const RunOrder& order, Channel& source) {
  const std::uint64_t bytes_before = sink_->landed_bytes();
  Measurement measurement(order, monotonic_now());
  std::uint64_t last_bytes = bytes_before;
  Instant stuck_at = monotonic_now() + kPatience;
  bool goes_on = true;
  while (goes_on || open_slots_ > 0) {
    const Instant now = monotonic_now();
    const std::uint64_t bytes = sink_->landed_bytes();
    goes_on = goes_on && measurement.goes_on(now, bytes - bytes_before);
    if (bytes != last_bytes) stuck_at = now + kPatience;
    if (now >= stuck_at) return fail(FailureCode::kRoomTimeout, "nothing lands any more");
    last_bytes = bytes;
    const TargetSink::Events events =
        sink_->wait(goes_on ? measurement.next_look(now) : now + milliseconds(100));
    if (!events.failure.empty()) return fail(FailureCode::kWriteTorn, events.failure);
    for (const TargetSink::Full& full : events.full) fence(full.slot);
    for (const TargetSink::Fenced& fenced : events.fenced) {
      const std::uint32_t slot = slot_of(fenced.grant);
      close(slot);
      if (!goes_on) continue;
      if (auto opened = open_next(slot, source); !opened) return tl::unexpected(opened.error());
    }
  }
  if (auto sent = source.send({Kind::kEnd, {}, {}, {}}); !sent) {
    return tl::unexpected(sent.error());
  }
  auto checked = check();
  if (!checked) return tl::unexpected(checked.error());
  RunResult result = measurement.result();
  result.checked_pages = *checked;
  return result;
}

// The extents are made here, since choosing pages is no part of what is measured.
void TransportTarget::plan(const Block& block) {
  block_ = block;
  order_ = scattered_order(block.page_count);
  std::vector<layout::ItemSlice> page_slices;
  for (std::uint32_t region = 0; region < block.region_count; ++region) {
    page_slices.push_back({RegionId(region), 0, block.page_bytes, 1, 0});
  }
  std::vector<layout::ItemSlice> aux_slices;
  if (block.has_aux) {
    aux_slices.push_back({RegionId(block.region_count), 0, kAuxRecordBytes, 1, 0});
  }
  extents_.clear();
  free_.clear();
  for (std::uint32_t index = 0; index < block.grant_count(); ++index) {
    std::vector<PageIndex> pages;
    for (std::uint32_t i = 0; i < block.pages_per_grant; ++i) {
      pages.emplace_back(order_[index * block.pages_per_grant + i]);
    }
    // The aux record's place is that of the grant's slot, which is not known yet.
    for (std::uint32_t slot = 0; slot < (block.has_aux ? block.grants_in_flight : 1); ++slot) {
      extents_.emplace_back(page_slices, pages, aux_slices,
                            block.has_aux ? static_cast<std::int64_t>(slot) : -1,
                            std::vector<layout::ItemSlice>{}, std::vector<std::uint32_t>{});
    }
    free_.push_back(index);
  }
  salts_.assign(block.grant_count(), 0);
  open_.assign(block.grants_in_flight, {});
  open_slots_ = 0;
  next_salt_ = 1;
}

Status TransportTarget::open_next(std::uint32_t slot, Channel& source) {
  const std::uint32_t index = free_.front();
  free_.pop_front();
  open_[slot] = {GrantId(next_generation_), index, next_salt_++, true, false, false, {}};
  const Generation generation(next_generation_++);
  ++open_slots_;
  sink_->expect(slot, generation, block_.grant_bytes());
  const std::size_t extent = block_.has_aux ? index * block_.grants_in_flight + slot : index;
  std::vector<data_plane::SlotGrant> slots;
  slots.push_back({epoch_, GrantSlot(slot), generation, extents_[extent]});
  transport_->open_grant(open_[slot].id, std::move(slots));
  return source.send({Kind::kGrant, {index, slot, generation.value(), open_[slot].salt}, {}, {}});
}

void TransportTarget::fence(std::uint32_t slot) {
  open_[slot].is_fencing = true;
  transport_->fence(open_[slot].id);
}

void TransportTarget::close(std::uint32_t slot, bool give_back) {
  OpenGrant& grant = open_[slot];
  grant.is_open = false;
  --open_slots_;
  salts_[grant.index] = grant.is_early ? 0 : grant.salt;
  if (give_back) free_.push_back(grant.index);
}

std::uint32_t TransportTarget::slot_of(GrantId grant) const {
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const OpenGrant& open) { return open.id == grant; });
  return static_cast<std::uint32_t>(found - open_.begin());
}

std::span<std::byte> TransportTarget::page_bytes(std::uint32_t region, std::uint32_t page) const {
  return {pool_.base + region * (pool_.bytes / block_.region_count) + page * block_.page_bytes,
          block_.page_bytes};
}

Result<std::uint64_t> TransportTarget::check() const {
  const std::uint64_t wanted = std::clamp<std::uint64_t>(kCheckedBytes / block_.page_bytes, 1, 64);
  Prng prng(next_salt_);
  std::uint64_t checked = 0;
  for (std::uint64_t tries = 0; checked < wanted && tries < 64 * wanted; ++tries) {
    const auto index = static_cast<std::uint32_t>(prng.below(block_.grant_count()));
    if (salts_[index] < first_salt_) continue;
    const std::uint32_t page =
        order_[index * block_.pages_per_grant + prng.below(block_.pages_per_grant)];
    const std::uint32_t source = source_page(page, salts_[index], block_.page_count);
    const auto region = static_cast<std::uint32_t>(prng.below(block_.region_count));
    const std::uint64_t region_begin = region * (pool_.bytes / block_.region_count);
    if (!holds_pattern(page_bytes(region, page), region_begin + source * block_.page_bytes)) {
      return fail(
          FailureCode::kUnspecified,
          fmt::format("page {} of the target does not hold page {} of the source", page, source));
    }
    ++checked;
  }
  if (checked == 0) return fail(FailureCode::kUnspecified, "no page could be checked");
  return checked;
}

std::unique_ptr<TargetEngine> make_transport_target(std::string_view name, const WorkerSetup& setup,
                                                    const Pool& pool) {
  return std::make_unique<TransportTarget>(name, setup, pool);
}

}  // namespace kvferry::bench
