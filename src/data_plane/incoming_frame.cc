#include "data_plane/incoming_frame.h"

#include <fmt/format.h>

#include <algorithm>

#include "data_plane/page_digest.h"

namespace kvferry::data_plane {
namespace {

// The most that one marked read may move, so that a fence never waits for longer than that takes.
constexpr std::uint64_t kPartBytes = 1U << 20;
constexpr std::size_t kPartPieces = 128;

}  // namespace

void IncomingFrame::begin(ReceiveGate::Reader& reader, std::shared_ptr<SessionSlots> slots,
                          GrantSlot slot, Generation generation,
                          std::span<const IncomingWrite> writes,
                          std::span<const std::uint64_t> digests) {
  reader_ = &reader;
  digests_.assign(digests.begin(), digests.end());
  altered_.clear();
  slots_ = std::move(slots);
  slot_ = slot;
  generation_ = generation;
  position_ = 0;
  is_finished_ = false;
  items_.clear();
  for (const IncomingWrite& write : writes) {
    Item item;
    item.write = write;
    items_.push_back(item);
  }
  skip_complete();
  if (!slots_->in_range(slot)) return;  // refused, as items start out
  MarkScope mark(reader, *slots_, slot_, generation_);
  std::lock_guard lock(slots_->lock_of(slot_));
  layout::GrantExtent::LastPlace last;
  for (Item& item : items_) claim(item, mark.is_live(), last);
}

void IncomingFrame::claim(Item& item, bool live, layout::GrantExtent::LastPlace& last) {
  SessionSlots::Life* life = slots_->slots_[slot_.value()].life.get();
  if (life == nullptr || life->generation != generation_) {
    item.result = WriteResult::kFenced;
    return;
  }
  const IncomingWrite& write = item.write;
  std::byte* target = live ? slots_->gate_->address_of(write) : nullptr;
  std::optional<std::uint64_t> place;
  if (target != nullptr) {
    place =
        life->extent.place_of(write.region, write.item, write.offset_in_item, write.length, last);
  }
  if (!place) {
    // A ticket that is known keeps its outcome, whatever its second copy names.
    if (life->claims.find(write.ticket)) {
      item.answer = Answer::kFirstCopy;
    } else if (!live) {
      item.result = WriteResult::kFenced;
    }
    return;
  }
  switch (life->claims.take(write.ticket, *place, write.offset_in_item, write.length, item.claim)) {
    case ClaimTable::Take::kTaken:
      item.target = target;
      item.goes_to_page = true;
      return;
    case ClaimTable::Take::kKnownTicket:
      item.answer = Answer::kFirstCopy;
      return;
    case ClaimTable::Take::kOverlap:
    case ClaimTable::Take::kFull:
      return;
  }
}

std::span<const iovec> IncomingFrame::page_part() {
  parts_.clear();
  std::uint64_t bytes = 0;
  for (std::size_t i = position_; i < items_.size() && items_[i].goes_to_page; ++i) {
    if (parts_.size() == kPartPieces || bytes == kPartBytes) break;
    Item& item = items_[i];
    const std::uint64_t length = std::min(item.write.length - item.moved, kPartBytes - bytes);
    parts_.push_back(iovec{item.target + item.moved, length});
    bytes += length;
  }
  return parts_;
}

std::span<const iovec> IncomingFrame::scrap_part(ReceiveGate::Reader& reader) {
  std::uint64_t bytes = 0;
  const std::span<std::byte> scratch = reader.scratch();
  for (std::size_t i = position_; i < items_.size() && !items_[i].goes_to_page; ++i) {
    bytes =
        std::min<std::uint64_t>(scratch.size(), bytes + items_[i].write.length - items_[i].moved);
    if (bytes == scratch.size()) break;
  }
  parts_.assign(1, iovec{scratch.data(), bytes});
  return parts_;
}

void IncomingFrame::advance(std::uint64_t bytes) {
  while (bytes != 0 && position_ < items_.size()) {
    Item& item = items_[position_];
    const std::uint64_t step = std::min(bytes, item.write.length - item.moved);
    item.moved += step;
    bytes -= step;
    if (item.goes_to_page) item.touched = true;
    skip_complete();
  }
}

void IncomingFrame::skip_complete() {
  while (position_ < items_.size() && items_[position_].moved == items_[position_].write.length) {
    ++position_;
  }
}

void IncomingFrame::drop_rest() {
  // Claims stay as they are: the slot's life is over, and end() settles them.
  for (std::size_t i = position_; i < items_.size(); ++i) {
    if (!items_[i].goes_to_page) continue;
    items_[i].goes_to_page = false;
    items_[i].result = items_[i].touched ? WriteResult::kTorn : WriteResult::kFenced;
  }
}

Landing IncomingFrame::landing_of(const Item& item) const {
  return Landing{slots_->epoch(),
                 slot_,
                 generation_,
                 item.write.ticket,
                 item.write.region,
                 item.write.item,
                 item.write.offset_in_item,
                 item.write.length};
}

void IncomingFrame::end(bool valid) {
  landings_.clear();
  bool live = false;
  if (slots_->in_range(slot_)) {
    std::lock_guard lock(slots_->lock_of(slot_));
    live = slots_->is_live(slot_, generation_);
    SessionSlots::Life* life = slots_->slots_[slot_.value()].life.get();
    const bool known = life != nullptr && life->generation == generation_;
    for (Item& item : items_) {
      if (item.target == nullptr) continue;
      if (item.goes_to_page && valid && live && !item.is_altered) {
        item.result = WriteResult::kLanded;
        landings_.push_back(landing_of(item));
      } else {
        item.result = item.touched ? WriteResult::kTorn
                      : live       ? WriteResult::kRefused
                                   : WriteResult::kFenced;
      }
      if (!known) continue;
      life->claims.settle(item.claim, item.result == WriteResult::kLanded
                                          ? ClaimTable::State::kLanded
                                      : item.touched ? ClaimTable::State::kTorn
                                                     : ClaimTable::State::kRefused);
    }
  }
  count_results();
  CompletionSink& sink = slots_->gate_->sink_;
  if (!landings_.empty()) sink.writes_landed(landings_);
  if (!live) return;
  for (const Item& item : items_) {
    const bool torn_here = item.target != nullptr && item.result == WriteResult::kTorn;
    if (torn_here && !item.is_altered) sink.write_torn(landing_of(item), "stopped in the middle");
  }
  tell_altered();
}

void IncomingFrame::count_results() {
  GateCounters& counters = slots_->gate_->counters_;
  for (const Item& item : items_) {
    if (item.answer == Answer::kFirstCopy) continue;
    if (item.result == WriteResult::kRefused) ++counters.writes_refused;
    if (item.result == WriteResult::kFenced) ++counters.writes_stale;
    if (item.result == WriteResult::kTorn) ++counters.writes_torn;
  }
}

// Under marks, as copies are: once a fence is done nobody looks at the page, whose next owner may
// be writing it, or whose memory may be gone.
std::optional<std::uint64_t> IncomingFrame::digest_in_place(const Item& item) {
  std::span<const std::byte> bytes(item.target, item.write.length);
  if (bytes.size() <= kPartBytes) {
    MarkScope mark(*reader_, *slots_, slot_, generation_);
    if (!mark.is_live()) return std::nullopt;
    return page_digest(bytes);
  }
  PageDigest digest;
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<std::size_t>(bytes.size(), kPartBytes));
    MarkScope mark(*reader_, *slots_, slot_, generation_);
    if (!mark.is_live()) return std::nullopt;
    digest.add(part);
    bytes = bytes.subspan(part.size());
  }
  return digest.value();
}

void IncomingFrame::compare_digests() {
  for (std::size_t i = 0; i < digests_.size(); ++i) {
    if (!items_[i].goes_to_page) continue;
    const auto digest = digest_in_place(items_[i]);
    if (!digest) return;  // fenced: end() sees it, too, and nothing lands
    if (*digest == digests_[i]) continue;
    items_[i].is_altered = true;
    altered_.push_back({i, *digest});
  }
}

void IncomingFrame::tell_altered() {
  ReceiveGate& gate = *slots_->gate_;
  for (const Altered& altered : altered_) {
    ++gate.counters_.page_digest_mismatches;
    gate.sink_.write_torn(landing_of(items_[altered.index]),
                          fmt::format("landed altered: its digest is {:016x}, its source's was "
                                      "{:016x}",
                                      altered.digest, digests_[altered.index]));
  }
}

void IncomingFrame::finish(bool valid) {
  if (valid) compare_digests();
  end(valid);
  is_finished_ = true;
}

void IncomingFrame::abandon() {
  if (!is_open()) return;
  if (!is_finished_) end(false);
  close();
}

void IncomingFrame::close() {
  slots_.reset();
  items_.clear();
  position_ = 0;
}

bool IncomingFrame::answers(std::vector<WriteResult>& out) {
  out.clear();
  bool complete = true;
  for (Item& item : items_) {
    if (item.answer == Answer::kFirstCopy) {
      if (const auto first = slots_->outcome_of(slot_, generation_, item.write.ticket)) {
        item.result = *first;
        item.answer = Answer::kKnown;
      } else {
        complete = false;
      }
    }
    out.push_back(item.result);
  }
  return complete;
}

}  // namespace kvferry::data_plane
