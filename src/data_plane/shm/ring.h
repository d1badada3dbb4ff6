// The descriptor ring of a lane: one producer (the source) and one consumer (the target) in two
// processes that don't trust each other. There are two memories, and each side writes only its own
// and maps the other's read-only:
//
//   submissions (the source's)   head       entries published so far
//                                bell_at    number of answers at which the source wants to be woken
//                                entries    a ring of descriptors
//   answers (the target's)       answered   entries answered so far
//                                waits      odd while the target sleeps; counts its sleeps
//                                results    a ring of bytes, one for each entry, in their order
//
// Counters only grow. An entry is free again when its answer was taken, so that the ring holds at
// most as many entries as it has places, from put() to take_answers(), and with them everything
// that the target keeps for this lane.
//
// Waking: a side that finds nothing to do says that it sleeps and then looks once more; the other
// one publishes and then looks whether somebody sleeps. The two stores and the two loads are
// sequentially consistent, so at least one side sees the other's and no wake-up is lost; with
// release and acquire alone both loads could pass both stores. Bells are eventfds and belong to the
// lane. Rule for both sides: when woken, first empty the bell, then look into the ring.
//
// What comes from the other side's memory is copied once and checked as a copy; it may change at
// any time. A counter that can't be right is a failure (kMalformed): the lane is to be closed, and
// whatever else the peer writes it can only spoil its own writes.
//
// Threads: a RingWriter and a RingReader each belong to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data_plane/claim_table.h"
#include "data_plane/shm/peer_memory.h"
#include "kvferry/ids.h"
#include "kvferry/shared_pool.h"
#include "kvferry/status.h"

namespace kvferry::data_plane::shm {

// Powers of two.
inline constexpr std::uint32_t kMinRingEntries = 64;
inline constexpr std::uint32_t kMaxRingEntries = 65'536;
bool is_ring_size(std::uint32_t entries);

// One posted write; nothing of it was checked.
struct Descriptor {
  GrantSlot slot;
  Generation generation;
  IncomingWrite write;
  RegionId source_region;
  std::uint64_t source_offset = 0;  // bytes from the start of the source region
  std::uint64_t digest = 0;         // of the bytes, where the lane has digests
};

// Bytes of each memory.
std::uint64_t submission_bytes(std::uint32_t entries);
std::uint64_t answer_bytes(std::uint32_t entries);

struct SubmissionHeader;
struct AnswerHeader;

// The source's end.
class RingWriter {
 public:
  static Result<RingWriter> create(std::uint32_t entries);

  // The memory of the submissions; the descriptor stays the writer's.
  int fd() const { return memory_.fd(); }
  std::uint32_t entries() const { return entries_; }
  // Before anything else of what follows. Refused when the memory is too small for this ring.
  Status attach(PeerMemory answers);
  bool is_attached() const { return answers_.base() != nullptr; }

  std::uint32_t free_entries() const;
  // Entries that were put and whose answers were not taken.
  std::uint32_t outstanding() const;
  // There must be a free entry. The target sees it after the next publish().
  void put(const Descriptor& descriptor);
  // Shows what was put. True: the target sleeps and its bell was not rung for this sleep; ring it.
  bool publish();

  // Appends the answers that have come, in the order of put(), and says how many.
  Result<std::size_t> take_answers(std::vector<std::uint8_t>& out);
  // Asks for the bell when half of what is outstanding is answered, so that a busy target does not
  // wake this side for every frame. False when answers are there already: don't sleep.
  bool wait_for_answers();

 private:
  RingWriter(SharedPool memory, std::uint32_t entries);
  SubmissionHeader& header() const;
  const AnswerHeader& answers() const;

  SharedPool memory_;
  PeerMemory answers_;
  std::uint32_t entries_;
  std::uint64_t put_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t taken_ = 0;    // answers
  std::uint64_t rung_at_ = 0;  // the target's sleep for which its bell was rung
};

// The target's end.
class RingReader {
 public:
  // Refused when the submissions are too small for that many entries.
  static Result<RingReader> create(PeerMemory submissions, std::uint32_t entries);

  // The memory of the answers; the descriptor stays the reader's.
  int fd() const { return memory_.fd(); }
  std::uint32_t entries() const { return entries_; }

  // Copies what was published, as far as it fits, and says how much.
  Result<std::size_t> take(std::span<Descriptor> out);
  // Entries that were taken and not answered.
  std::uint32_t unanswered() const;
  // Answers the oldest unanswered entries; no more than there are. True: the source asked for its
  // bell at this number of answers; ring it.
  bool answer(std::span<const std::uint8_t> results);

  // Says that this side sleeps. False when there is something to take (or something malformed for
  // take() to find): don't sleep.
  bool wait();
  // Awake again, so that the source need not ring.
  void stop_waiting();

 private:
  RingReader(SharedPool memory, PeerMemory submissions, std::uint32_t entries);
  AnswerHeader& header() const;
  const SubmissionHeader& submissions() const;

  SharedPool memory_;
  PeerMemory submissions_;
  std::uint32_t entries_;
  std::uint64_t taken_ = 0;
  std::uint64_t answered_ = 0;
  std::uint64_t waits_ = 0;
  std::uint64_t rung_at_ = 0;  // the bell_at for which the source's bell was rung
};

}  // namespace kvferry::data_plane::shm
