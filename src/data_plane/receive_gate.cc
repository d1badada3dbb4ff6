#include "data_plane/receive_gate.h"

#include <algorithm>
#include <cassert>

#include "base/runtime_guards.h"

namespace kvferry::data_plane {
namespace {

// A mark's value: the slot in the low bits, the thread's count of marks above. The count makes two
// marks for one slot differ, so that a fence sees that the first was cleared.
constexpr std::uint32_t kSlotBits = 24;
constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;

std::uint64_t mark_value(std::uint64_t sequence, GrantSlot slot) {
  return (sequence << kSlotBits) | (std::uint64_t{slot.value()} + 1);
}

// A writer may cut pieces further (a chunk can end inside a page), but not into single bytes.
constexpr std::uint64_t kClaimsPerPiece = 16;
constexpr std::uint64_t kSpareClaims = 1'024;

}  // namespace

SessionSlots::Life::Life(Generation born, layout::GrantExtent granted)
    : generation(born),
      extent(std::move(granted)),
      claims(extent.total_writes_bound() * kClaimsPerPiece + kSpareClaims, extent.place_count()) {}

SessionSlots::SessionSlots(ReceiveGate& gate, SessionEpoch epoch, std::uint32_t slot_count)
    : gate_(&gate),
      epoch_(epoch),
      slot_count_(slot_count),
      slots_(std::make_unique<Slot[]>(slot_count)),
      locks_(std::make_unique<std::mutex[]>(kLocks)) {}

bool SessionSlots::is_live(GrantSlot slot, Generation generation) const {
  if (!in_range(slot) || generation.value() > kMaxGeneration) return false;
  return slots_[slot.value()].state.load(std::memory_order_seq_cst) == open_state(generation);
}

std::optional<WriteResult> SessionSlots::outcome_of(GrantSlot slot, Generation generation,
                                                    TicketId ticket) {
  if (!in_range(slot)) return WriteResult::kRefused;
  const bool live = is_live(slot, generation);
  std::lock_guard lock(lock_of(slot));
  const Life* life = slots_[slot.value()].life.get();
  // A generation that this slot has not reached can't have been claimed.
  if (life == nullptr || life->generation < generation) return WriteResult::kRefused;
  if (generation < life->generation) return WriteResult::kNotKnown;
  const auto state = life->claims.find(ticket);
  if (!state) return live ? WriteResult::kRefused : WriteResult::kFenced;
  switch (*state) {
    case ClaimTable::State::kCopying:
      return std::nullopt;
    case ClaimTable::State::kLanded:
      return WriteResult::kLanded;
    case ClaimTable::State::kTorn:
      return WriteResult::kTorn;
    case ClaimTable::State::kRefused:
      return WriteResult::kRefused;
  }
  return WriteResult::kNotKnown;
}

ReceiveGate::Reader::Reader(ReceiveGate& gate)
    : gate_(gate), mark_(gate.add_mark()), scratch_(kScratchBytes / sizeof(Line)) {}

ReadMark* ReceiveGate::add_mark() {
  std::lock_guard lock(marks_mutex_);
  marks_.push_back(std::make_unique<ReadMark>());
  return marks_.back().get();
}

ReceiveGate::Reader::~Reader() {
  // The mark stays with the gate: a fence may be looking at it.
  mark_->value.store(0, std::memory_order_seq_cst);
}

MarkScope::MarkScope(ReceiveGate::Reader& reader, const SessionSlots& slots, GrantSlot slot,
                     Generation generation)
    : reader_(reader) {
  reader_.mark_->value.store(mark_value(++reader_.sequence_, slot), std::memory_order_seq_cst);
  // NOLINTNEXTLINE(*-prefer-member-initializer): after the mark
  live_ = !has_guard(RuntimeGuard::kReceiveCheck) || slots.is_live(slot, generation);
}

MarkScope::~MarkScope() {
  reader_.mark_->value.store(0, std::memory_order_seq_cst);
  // Either this sees that a fence waits, or the fence's look at the mark comes after the store.
  if (reader_.gate_.waiting_for_marks_.load(std::memory_order_seq_cst) != 0) {
    reader_.gate_.wake_fencer();
  }
}

ReceiveGate::ReceiveGate(std::uint32_t max_grant_slots, CompletionSink& sink, ThreadRoster* threads)
    : max_grant_slots_(
          static_cast<std::uint32_t>(std::min<std::uint64_t>(max_grant_slots, kSlotMask - 1))),
      sink_(sink),
      place_(enrol(threads, "kvf-fence", "waits until what was fenced has stopped")),
      fencer_([this] { place_->run([this] { run_fences(); }); }) {}

ReceiveGate::~ReceiveGate() { stop(); }

std::vector<TransportCounter> ReceiveGate::counters() const {
  return {{"writes_refused", counters_.writes_refused.load()},
          {"writes_stale", counters_.writes_stale.load()},
          {"writes_torn", counters_.writes_torn.load()},
          {"page_digest_mismatches", counters_.page_digest_mismatches.load()}};
}

void ReceiveGate::register_regions(std::span<const Region> regions) {
  regions_.assign(regions.begin(), regions.end());
  largest_item_bytes_ = 0;
  for (const Region& region : regions_) {
    largest_item_bytes_ = std::max(largest_item_bytes_, region.item_bytes);
  }
}

bool ReceiveGate::has_sessions() const {
  std::lock_guard lock(sessions_mutex_);
  return !sessions_.empty();
}

std::shared_ptr<SessionSlots> ReceiveGate::open_session(SessionEpoch epoch) {
  std::lock_guard lock(sessions_mutex_);
  auto [place, added] = sessions_.try_emplace(epoch);
  if (!added) return nullptr;
  place->second = std::make_shared<SessionSlots>(*this, epoch, max_grant_slots_);
  return place->second;
}

void ReceiveGate::close_session(SessionEpoch epoch) {
  std::lock_guard lock(sessions_mutex_);
  sessions_.erase(epoch);
}

std::shared_ptr<SessionSlots> ReceiveGate::find_session(SessionEpoch epoch) const {
  std::lock_guard lock(sessions_mutex_);
  const auto found = sessions_.find(epoch);
  return found == sessions_.end() ? nullptr : found->second;
}

void ReceiveGate::open_grant(GrantId grant, std::vector<SlotGrant> slots) {
  std::vector<HeldSlot>& held = grants_[grant];
  for (SlotGrant& granted : slots) {
    const auto session = find_session(granted.session);
    // A session may have ended while its grant was on the way here: nothing can be written then.
    if (!session) continue;
    if (!session->in_range(granted.slot) ||
        granted.generation.value() > SessionSlots::kMaxGeneration) {
      continue;
    }
    SessionSlots::Slot& slot = session->slots_[granted.slot.value()];
    auto life = std::make_unique<SessionSlots::Life>(granted.generation, std::move(granted.extent));
    {
      std::lock_guard lock(session->lock_of(granted.slot));
      // The core reuses a slot only after its fence, and never a generation.
      assert(slot.state.load() % 2 == 0);
      assert(!slot.life || slot.life->generation < granted.generation);
      slot.life.swap(life);
    }
    slot.state.store(SessionSlots::open_state(granted.generation), std::memory_order_seq_cst);
    held.push_back(HeldSlot{session, granted.slot, granted.generation});
  }
}

void ReceiveGate::fence(GrantId grant) {
  FenceJob job{grant, {}};
  const auto found = grants_.find(grant);
  if (found != grants_.end()) {
    for (const HeldSlot& held : found->second) {
      held.session->slots_[held.slot.value()].state.store(
          SessionSlots::closed_state(held.generation), std::memory_order_seq_cst);
      job.slots.push_back(held.slot);
    }
    grants_.erase(found);
  }
  // Mostly nobody copies: that saves two switches of threads on each room's way to its end. After
  // stop no receiving thread is left that could have a mark up.
  if (marks_in(std::span(&job, 1)).empty() || !hand_to_fencer(std::move(job))) {
    sink_.fence_done(grant);
  }
}

bool ReceiveGate::hand_to_fencer(FenceJob job) {
  std::lock_guard lock(fences_mutex_);
  if (stopping_) return false;
  fences_.push_back(std::move(job));
  fences_changed_.notify_all();
  return true;
}

std::vector<ReceiveGate::Watched> ReceiveGate::marks_in(std::span<const FenceJob> jobs) const {
  std::vector<Watched> watched;
  std::lock_guard lock(marks_mutex_);
  for (const auto& mark : marks_) {
    const std::uint64_t value = mark->value.load(std::memory_order_seq_cst);
    if (value == 0) continue;
    // Slots of two sessions may share a number; the fence then waits for one copy too many.
    const bool concerned = std::any_of(jobs.begin(), jobs.end(), [&](const FenceJob& job) {
      return std::any_of(job.slots.begin(), job.slots.end(), [&](GrantSlot slot) {
        return (value & kSlotMask) == std::uint64_t{slot.value()} + 1;
      });
    });
    if (concerned) watched.push_back(Watched{mark.get(), value});
  }
  return watched;
}

void ReceiveGate::run_fences() {
  std::vector<FenceJob> jobs;
  for (;;) {
    jobs.clear();
    std::unique_lock lock(fences_mutex_);
    place_->waits();
    fences_changed_.wait(lock, [this] { return stopping_ || !fences_.empty(); });
    place_->works();
    if (fences_.empty()) return;
    jobs.swap(fences_);
    lock.unlock();

    waiting_for_marks_.store(1, std::memory_order_seq_cst);
    std::vector<Watched> watched = marks_in(jobs);
    lock.lock();
    place_->waits();
    fences_changed_.wait(lock, [&watched] {
      std::erase_if(watched, [](const Watched& seen) {
        return seen.mark->value.load(std::memory_order_seq_cst) != seen.value;
      });
      return watched.empty();
    });
    lock.unlock();
    place_->works();
    waiting_for_marks_.store(0, std::memory_order_seq_cst);
    for (const FenceJob& job : jobs) sink_.fence_done(job.grant);
  }
}

void ReceiveGate::wake_fencer() {
  std::lock_guard lock(fences_mutex_);
  fences_changed_.notify_all();
}

void ReceiveGate::stop() {
  {
    std::lock_guard lock(fences_mutex_);
    stopping_ = true;
    fences_changed_.notify_all();
  }
  if (fencer_.joinable()) fencer_.join();
}

std::byte* ReceiveGate::address_of(const IncomingWrite& write) const {
  if (write.region.value() >= regions_.size()) return nullptr;
  const Region& region = regions_[write.region.value()];
  if (write.item >= region.item_count || write.length == 0) return nullptr;
  if (write.offset_in_item >= region.item_bytes ||
      write.length > region.item_bytes - write.offset_in_item) {
    return nullptr;
  }
  return region.base + std::uint64_t{write.item} * region.item_bytes + write.offset_in_item;
}

}  // namespace kvferry::data_plane
