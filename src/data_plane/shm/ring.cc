#include "data_plane/shm/ring.h"

#include <atomic>
#include <bit>
#include <cassert>
#include <cstddef>
#include <new>
#include <string>
#include <utility>

namespace kvferry::data_plane::shm {

using SharedWord = std::atomic<std::uint64_t>;
using SharedByte = std::atomic<std::uint8_t>;
// Two processes share these: a lock would be in the memory of one of them.
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == sizeof(std::uint64_t));
static_assert(SharedByte::is_always_lock_free && sizeof(SharedByte) == sizeof(std::uint8_t));

// Each word in a cache line of its own, since different sides write and read them all the time.
struct SubmissionHeader {
  alignas(64) SharedWord head{0};
  alignas(64) SharedWord bell_at{0};
};
struct AnswerHeader {
  alignas(64) SharedWord answered{0};
  alignas(64) SharedWord waits{0};
};

namespace {

constexpr std::size_t kRingHeadBytes = 128;
static_assert(sizeof(SubmissionHeader) == kRingHeadBytes && sizeof(AnswerHeader) == kRingHeadBytes);

// A descriptor as it lies in the ring, one cache line. Word by word, so that a producer that
// scribbles over it while it is copied gives a wrong descriptor and nothing worse.
struct alignas(64) Entry {
  SharedWord words[8]{};
};
static_assert(sizeof(Entry) == 64);

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}
constexpr std::uint32_t low_half(std::uint64_t word) { return static_cast<std::uint32_t>(word); }
constexpr std::uint32_t high_half(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}

void store(Entry& entry, const Descriptor& descriptor) {
  const IncomingWrite& write = descriptor.write;
  const std::uint64_t words[] = {
      join(descriptor.slot.value(), descriptor.source_region.value()),
      descriptor.generation.value(),
      write.ticket.value(),
      join(write.region.value(), write.item),
      write.offset_in_item,
      write.length,
      descriptor.source_offset,
      descriptor.digest,
  };
  for (std::size_t i = 0; i < std::size(words); ++i) {
    entry.words[i].store(words[i], std::memory_order_relaxed);
  }
}

Descriptor load(const Entry& entry) {
  std::uint64_t words[8];
  for (std::size_t i = 0; i < std::size(words); ++i) {
    words[i] = entry.words[i].load(std::memory_order_relaxed);
  }
  Descriptor descriptor;
  descriptor.slot = GrantSlot(low_half(words[0]));
  descriptor.source_region = RegionId(high_half(words[0]));
  descriptor.generation = Generation(words[1]);
  descriptor.write.ticket = TicketId(words[2]);
  descriptor.write.region = RegionId(low_half(words[3]));
  descriptor.write.item = high_half(words[3]);
  descriptor.write.offset_in_item = words[4];
  descriptor.write.length = words[5];
  descriptor.source_offset = words[6];
  descriptor.digest = words[7];
  return descriptor;
}

Entry* entries_of(std::byte* base) { return reinterpret_cast<Entry*>(base + kRingHeadBytes); }
const Entry* entries_of(const std::byte* base) {
  return reinterpret_cast<const Entry*>(base + kRingHeadBytes);
}
SharedByte* results_of(std::byte* base) {
  return reinterpret_cast<SharedByte*>(base + kRingHeadBytes);
}
const SharedByte* results_of(const std::byte* base) {
  return reinterpret_cast<const SharedByte*>(base + kRingHeadBytes);
}

tl::unexpected<Failure> bad_size(std::uint32_t entries) {
  return fail(FailureCode::kInvalidArgument,
              "shared ring: " + std::to_string(entries) + " entries is not a power of two from " +
                  std::to_string(kMinRingEntries) + " to " + std::to_string(kMaxRingEntries));
}

Status check_bytes(const PeerMemory& memory, std::uint64_t needed) {
  if (memory.base() != nullptr && memory.bytes() >= needed) return {};
  return fail(FailureCode::kMalformed,
              "shared ring: the peer's memory has " + std::to_string(memory.bytes()) +
                  " bytes where " + std::to_string(needed) + " are needed",
              FailureWhere::kPeer);
}

tl::unexpected<Failure> bad_counter(const char* name, std::uint64_t value, std::uint64_t low,
                                    std::uint64_t high) {
  return fail(FailureCode::kMalformed,
              std::string("shared ring: ") + name + " is " + std::to_string(value) +
                  " where it must be from " + std::to_string(low) + " to " + std::to_string(high),
              FailureWhere::kPeer);
}

}  // namespace

bool is_ring_size(std::uint32_t entries) {
  return entries >= kMinRingEntries && entries <= kMaxRingEntries && std::has_single_bit(entries);
}

std::uint64_t submission_bytes(std::uint32_t entries) {
  return kRingHeadBytes + std::uint64_t{entries} * sizeof(Entry);
}

std::uint64_t answer_bytes(std::uint32_t entries) { return kRingHeadBytes + entries; }

// --- the source's end ---

Result<RingWriter> RingWriter::create(std::uint32_t entries) {
  if (!is_ring_size(entries)) return bad_size(entries);
  auto memory = SharedPool::create(submission_bytes(entries));
  if (!memory) return tl::unexpected(memory.error());
  return RingWriter(std::move(*memory), entries);
}

RingWriter::RingWriter(SharedPool memory, std::uint32_t entries)
    : memory_(std::move(memory)), entries_(entries) {
  new (memory_.base()) SubmissionHeader;
  for (std::uint32_t i = 0; i < entries; ++i) new (entries_of(memory_.base()) + i) Entry;
}

SubmissionHeader& RingWriter::header() const {
  return *reinterpret_cast<SubmissionHeader*>(memory_.base());
}

const AnswerHeader& RingWriter::answers() const {
  assert(is_attached());
  return *reinterpret_cast<const AnswerHeader*>(answers_.base());
}

Status RingWriter::attach(PeerMemory answers) {
  if (Status enough = check_bytes(answers, answer_bytes(entries_)); !enough) return enough;
  answers_ = std::move(answers);
  return {};
}

std::uint32_t RingWriter::outstanding() const { return static_cast<std::uint32_t>(put_ - taken_); }

std::uint32_t RingWriter::free_entries() const { return entries_ - outstanding(); }

void RingWriter::put(const Descriptor& descriptor) {
  assert(free_entries() > 0);
  store(entries_of(memory_.base())[put_ & (entries_ - 1)], descriptor);
  ++put_;
}

bool RingWriter::publish() {
  if (published_ == put_) return false;
  published_ = put_;
  // Sequentially consistent both: see "Waking".
  header().head.store(published_, std::memory_order_seq_cst);
  const std::uint64_t waits = answers().waits.load(std::memory_order_seq_cst);
  const bool sleeps = waits % 2 == 1;
  if (!sleeps || waits == rung_at_) return false;
  rung_at_ = waits;
  return true;
}

Result<std::size_t> RingWriter::take_answers(std::vector<std::uint8_t>& out) {
  const std::uint64_t answered = answers().answered.load(std::memory_order_acquire);
  if (answered < taken_ || answered > published_) {
    return bad_counter("the number of answers", answered, taken_, published_);
  }
  const auto count = static_cast<std::size_t>(answered - taken_);
  const SharedByte* results = results_of(answers_.base());
  for (; taken_ != answered; ++taken_) {
    out.push_back(results[taken_ & (entries_ - 1)].load(std::memory_order_relaxed));
  }
  return count;
}

bool RingWriter::wait_for_answers() {
  // Never lower than before, and above every number for which the bell was rung: the answers up to
  // that number are either taken or seen by the second look.
  const std::uint64_t half = (published_ - taken_) / 2;
  header().bell_at.store(taken_ + (half > 0 ? half : 1), std::memory_order_seq_cst);
  return answers().answered.load(std::memory_order_seq_cst) == taken_;
}

// --- the target's end ---

Result<RingReader> RingReader::create(PeerMemory submissions, std::uint32_t entries) {
  if (!is_ring_size(entries)) return bad_size(entries);
  if (Status enough = check_bytes(submissions, submission_bytes(entries)); !enough) {
    return tl::unexpected(enough.error());
  }
  auto memory = SharedPool::create(answer_bytes(entries));
  if (!memory) return tl::unexpected(memory.error());
  return RingReader(std::move(*memory), std::move(submissions), entries);
}

RingReader::RingReader(SharedPool memory, PeerMemory submissions, std::uint32_t entries)
    : memory_(std::move(memory)), submissions_(std::move(submissions)), entries_(entries) {
  new (memory_.base()) AnswerHeader;
  for (std::uint32_t i = 0; i < entries; ++i) new (results_of(memory_.base()) + i) SharedByte(0);
}

AnswerHeader& RingReader::header() const {
  return *reinterpret_cast<AnswerHeader*>(memory_.base());
}

const SubmissionHeader& RingReader::submissions() const {
  return *reinterpret_cast<const SubmissionHeader*>(submissions_.base());
}

Result<std::size_t> RingReader::take(std::span<Descriptor> out) {
  const std::uint64_t head = submissions().head.load(std::memory_order_acquire);
  // The upper end counts from what was answered: it bounds what this side holds for the peer.
  if (head < taken_ || head > answered_ + entries_) {
    return bad_counter("the head", head, taken_, answered_ + entries_);
  }
  const auto ready = static_cast<std::size_t>(head - taken_);
  const std::size_t count = ready < out.size() ? ready : out.size();
  const Entry* entries = entries_of(submissions_.base());
  for (std::size_t i = 0; i < count; ++i, ++taken_) {
    out[i] = load(entries[taken_ & (entries_ - 1)]);
  }
  return count;
}

std::uint32_t RingReader::unanswered() const {
  return static_cast<std::uint32_t>(taken_ - answered_);
}

bool RingReader::answer(std::span<const std::uint8_t> results) {
  if (results.empty()) return false;
  assert(results.size() <= unanswered());
  SharedByte* ring = results_of(memory_.base());
  for (const std::uint8_t result : results) {
    ring[answered_ & (entries_ - 1)].store(result, std::memory_order_relaxed);
    ++answered_;
  }
  // Sequentially consistent both: see "Waking".
  header().answered.store(answered_, std::memory_order_seq_cst);
  const std::uint64_t bell_at = submissions().bell_at.load(std::memory_order_seq_cst);
  if (bell_at <= rung_at_ || answered_ < bell_at) return false;
  rung_at_ = bell_at;
  return true;
}

bool RingReader::wait() {
  waits_ += 1 + waits_ % 2;  // the next odd number: a sleep of its own, with a bell of its own
  header().waits.store(waits_, std::memory_order_seq_cst);
  if (submissions().head.load(std::memory_order_seq_cst) == taken_) return true;
  stop_waiting();
  return false;
}

void RingReader::stop_waiting() {
  if (waits_ % 2 == 0) return;
  header().waits.store(++waits_, std::memory_order_relaxed);
}

}  // namespace kvferry::data_plane::shm
