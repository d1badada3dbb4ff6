#include "runtime/status_cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace kvferry::runtime {
namespace {

// Word: id << 8 | flags | status. The id keeps 56 bits, which a process that opens a million rooms
// a second uses up in two thousand years. A free place holds 0.
constexpr unsigned kIdShift = 8;
constexpr std::uint64_t kStatusBits = 0x07;
constexpr std::uint64_t kRead = 0x08;
constexpr std::uint64_t kCleared = 0x10;
constexpr std::uint64_t kReceiver = 0x20;

KvPoll status_of(std::uint64_t word) { return static_cast<KvPoll>(word & kStatusBits); }

std::uint64_t with_status(std::uint64_t word, KvPoll status) {
  return (word & ~kStatusBits) | static_cast<std::uint64_t>(status);
}

std::uint64_t first_word(std::uint64_t id, HandleKind kind) {
  return (id << kIdShift) | (kind == HandleKind::kReceiver ? kReceiver : 0) |
         static_cast<std::uint64_t>(KvPoll::kBootstrapping);
}

KvPoll read_word(std::atomic<std::uint64_t>& cell, std::uint64_t id) {
  std::uint64_t word = cell.load(std::memory_order_acquire);
  while ((word >> kIdShift) == id && (word & kCleared) == 0) {
    const bool passes_pages =
        status_of(word) == KvPoll::kSuccess && (word & kReceiver) != 0 && (word & kRead) == 0;
    if (!passes_pages || cell.compare_exchange_weak(word, word | kRead, std::memory_order_acq_rel,
                                                    std::memory_order_acquire)) {
      return status_of(word);
    }
  }
  return KvPoll::kFailed;
}

// What the low byte of a word reads as, kSlow where the read changes the word.
constexpr std::uint8_t kSlow = 0xFF;
constexpr auto kReads = [] {
  std::array<std::uint8_t, 256> reads{};
  for (std::uint64_t low = 0; low < reads.size(); ++low) {
    const bool passes_pages = (low & ~kReceiver) == static_cast<std::uint64_t>(KvPoll::kSuccess) &&
                              (low & kReceiver) != 0;
    reads[low] = (low & kCleared) != 0 ? 0
                 : passes_pages        ? kSlow
                                       : static_cast<std::uint8_t>(low & kStatusBits);
  }
  return reads;
}();

// Bootstrapping, WaitingForInput, Transferring, an end.
constexpr std::size_t kChangesPerHandle = 4;

std::uint64_t table_size(std::uint32_t max_handles) {
  // Half of the places stay free, so that the counter finds one within a few steps.
  return std::bit_ceil(std::uint64_t{max_handles} * 2);
}

}  // namespace

StatusCell::StatusCell(std::uint64_t cell_id, HandleKind cell_kind, RoomId cell_room,
                       Binding cell_binding, std::atomic<std::uint64_t>* word,
                       RoomCounters& counters)
    : id(cell_id),
      kind(cell_kind),
      room(cell_room),
      binding(cell_binding),
      word_(word != nullptr ? *word : own_word_),
      counters_(counters) {
  counters_.started.fetch_add(1, std::memory_order_relaxed);
  word_.store(first_word(id, kind), std::memory_order_release);
}

bool StatusCell::owns(std::uint64_t word) const { return (word >> kIdShift) == id; }

KvPoll StatusCell::load() const {
  const std::uint64_t word = word_.load(std::memory_order_acquire);
  return owns(word) && (word & kCleared) == 0 ? status_of(word) : KvPoll::kFailed;
}

KvPoll StatusCell::read() { return read_word(word_, id); }

bool StatusCell::advance(KvPoll status) {
  std::uint64_t word = word_.load(std::memory_order_acquire);
  while (owns(word) && !is_terminal(status_of(word)) && status_of(word) < status) {
    if (word_.compare_exchange_weak(word, with_status(word, status), std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

bool StatusCell::end(KvPoll status, const std::optional<Failure>& failure) {
  std::lock_guard lock(mutex_);
  std::uint64_t word = word_.load(std::memory_order_acquire);
  do {
    if (!owns(word) || is_terminal(status_of(word))) {
      return false;
    }
  } while (!word_.compare_exchange_weak(word, with_status(word, status), std::memory_order_acq_rel,
                                        std::memory_order_acquire));
  if (status == KvPoll::kSuccess) {
    counters_.succeeded.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  failure_ = failure.value_or(Failure{});
  const auto code = static_cast<std::size_t>(failure_->code);
  counters_.failed[code < RoomCounters::kCodes ? code : 0].fetch_add(1, std::memory_order_relaxed);
  return true;
}

StatusCell::Cleared StatusCell::clear(const Failure& cause) {
  Cleared result;
  result.ended = end(KvPoll::kFailed, cause);
  std::uint64_t word = word_.load(std::memory_order_acquire);
  do {
    if (!owns(word) || (word & kCleared) != 0) {
      return {};
    }
  } while (!word_.compare_exchange_weak(word, word | kCleared, std::memory_order_acq_rel,
                                        std::memory_order_acquire));
  result.first = true;
  result.unread_success =
      kind == HandleKind::kReceiver && status_of(word) == KvPoll::kSuccess && (word & kRead) == 0;
  return result;
}

std::optional<Failure> StatusCell::failure() const {
  // Under the mutex: whoever saw kFailed waits here until the text is written.
  std::lock_guard lock(mutex_);
  return failure_;
}

StatusTable::StatusTable(std::uint32_t max_handles)
    : max_handles_(max_handles),
      slot_mask_(table_size(max_handles) - 1),
      changes_(kChangesPerHandle * max_handles),
      words_(table_size(max_handles)),
      cells_(table_size(max_handles)) {}

std::shared_ptr<StatusCell> StatusTable::open(HandleKind kind, RoomId room, Binding binding) {
  std::lock_guard lock(open_mutex_);
  if (open_handles_ >= max_handles_) {
    auto cell = std::make_shared<StatusCell>(next_id_++, kind, room, binding, nullptr, counters_);
    cell->end(KvPoll::kFailed,
              Failure{FailureCode::kTableFull,
                      FailureWhere::kLocal,
                      fmt::format("{} handles are open and none was cleared", max_handles_),
                      {},
                      -1});
    return cell;
  }
  // Only this function takes places, and it holds the mutex: a place that reads free stays free.
  while (words_[slot_of(next_id_)].load(std::memory_order_acquire) != 0) {
    ++next_id_;
  }
  const std::uint64_t id = next_id_++;
  const std::size_t slot = slot_of(id);
  auto cell = std::make_shared<StatusCell>(id, kind, room, binding, &words_[slot], counters_);
  {
    std::lock_guard shard_lock(shard_of(slot).mutex);
    cells_[slot] = cell;
  }
  ++open_handles_;
  return cell;
}

void StatusTable::release(std::uint64_t id) {
  const std::size_t slot = slot_of(id);
  std::shared_ptr<StatusCell> cell;
  {
    std::lock_guard shard_lock(shard_of(slot).mutex);
    if (cells_[slot] == nullptr || cells_[slot]->id != id) {
      return;
    }
    cell = std::move(cells_[slot]);
    cells_[slot].reset();
  }
  std::lock_guard lock(open_mutex_);
  words_[slot].store(0, std::memory_order_release);
  --open_handles_;
}

std::shared_ptr<StatusCell> StatusTable::find(std::uint64_t id) const {
  const std::size_t slot = slot_of(id);
  std::lock_guard shard_lock(shard_of(slot).mutex);
  const std::shared_ptr<StatusCell>& cell = cells_[slot];
  return cell != nullptr && cell->id == id ? cell : nullptr;
}

// While the place's word names the id nobody writes the place: open() takes free ones only, and
// this thread is the one that would free it.
StatusCell* StatusTable::find_held(std::uint64_t id) const {
  const std::size_t slot = slot_of(id);
  const bool is_held = (words_[slot].load(std::memory_order_acquire) >> kIdShift) == id;
  return is_held ? cells_[slot].get() : nullptr;
}

KvPoll StatusTable::read(std::uint64_t id) { return read_word(words_[slot_of(id)], id); }

void StatusTable::read_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses) {
  // A load, a comparison and a look-up per room: this is what a scheduler does in every step.
  const std::size_t count = std::min(ids.size(), statuses.size());
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t id = ids[i];
    const std::uint64_t word = words_[slot_of(id)].load(std::memory_order_acquire);
    const std::uint8_t quick = (word >> kIdShift) == id ? kReads[word & 0xFF] : 0;
    statuses[i] = quick == kSlow ? read(id) : static_cast<KvPoll>(quick);
  }
}

void StatusTable::fail_all(const Failure& cause) {
  for (std::size_t slot = 0; slot < cells_.size(); ++slot) {
    std::shared_ptr<StatusCell> cell;
    {
      std::lock_guard shard_lock(shard_of(slot).mutex);
      cell = cells_[slot];
    }
    if (cell != nullptr) {
      cell->end(KvPoll::kFailed, cause);
    }
  }
  changes_.add_all();
}

std::uint32_t StatusTable::open_handles() const {
  std::lock_guard lock(open_mutex_);
  return open_handles_;
}

}  // namespace kvferry::runtime
