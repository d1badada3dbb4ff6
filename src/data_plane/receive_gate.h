// The target side of the receiver-executed transports: what may be written, by whom, and until
// when. Independent of how the bytes arrive.
//
// The order that makes a fence a local fact (checked by the lane model of the spec): a receiving
// thread publishes its mark, then reads the slot's generation, then claims, then copies, then
// clears the mark. A fence changes the generation first and then waits until each mark that it
// found up was once clear or changed. All four accesses are sequentially consistent. Whoever
// publishes after the change reads the new generation and copies nothing; whoever published before
// it is waited for.
//
// A mark is up only around a copy or a non-blocking read, never while bytes are awaited, so no peer
// can hold a fence. A frame that is read in parts keeps its claims and repeats mark and check per
// part.
//
// Threads: open_*, close_session, fence and stop are the driver's. Readers belong to one receiving
// thread each. fence() reports fence_done itself where it finds no mark of the grant's slots up;
// else one own thread waits for those marks, and reports it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data_plane/claim_table.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane {

// The target's answer for one write. The number crosses the wire; only append.
enum class WriteResult : std::uint8_t {
  kLanded = 0,
  kRefused = 1,  // no byte of it was or will be written
  kFenced = 2,   // as refused: the grant is over
  kTorn = 3,     // some bytes were written and no more will be
  kNotKnown =
      4,  // the slot has a new life and the old one's record is gone; no more will be written
};

// What a receiving thread shows while it copies: {sequence, slot + 1}, zero when clear.
struct alignas(64) ReadMark {
  std::atomic<std::uint64_t> value{0};
};

class ReceiveGate;

// What became of writes that did not land; from any thread.
struct GateCounters {
  std::atomic<std::uint64_t> writes_refused{0};  // outside its grant, or of a claimed range
  std::atomic<std::uint64_t> writes_stale{0};    // under a grant that is over
  std::atomic<std::uint64_t> writes_torn{0};
  std::atomic<std::uint64_t> page_digest_mismatches{0};
};

// The slots of one session. Reached only through the session's own lanes, so that no write can name
// a slot of another session. Outlives the session as long as a grant or a lane holds it.
class SessionSlots {
 public:
  SessionSlots(ReceiveGate& gate, SessionEpoch epoch, std::uint32_t slot_count);

  SessionEpoch epoch() const { return epoch_; }
  // How a write that was sent on a lane that is gone ended; nothing while it is still being copied.
  std::optional<WriteResult> outcome_of(GrantSlot slot, Generation generation, TicketId ticket);

 private:
  friend class ReceiveGate;
  friend class IncomingFrame;
  friend class MarkScope;

  // One grant's time in a slot. Kept after its fence, until the slot's next life, so that tickets
  // of a lost lane can still be answered.
  struct Life {
    Life(Generation born, layout::GrantExtent granted);
    Generation generation;
    layout::GrantExtent extent;
    ClaimTable claims;
  };
  struct Slot {
    std::atomic<std::uint64_t> state{0};  // open_state(), closed_state() or 0: never opened
    std::unique_ptr<Life> life;           // under the slot's lock
  };

  // Generations above this are refused, since twice the number must fit the slot's state.
  static constexpr std::uint64_t kMaxGeneration = ~std::uint64_t{0} / 2 - 1;
  static constexpr std::uint64_t open_state(Generation g) { return g.value() * 2 + 1; }
  static constexpr std::uint64_t closed_state(Generation g) { return g.value() * 2 + 2; }

  bool in_range(GrantSlot slot) const { return slot.value() < slot_count_; }
  bool is_live(GrantSlot slot, Generation generation) const;
  std::mutex& lock_of(GrantSlot slot) { return locks_[slot.value() % kLocks]; }

  static constexpr std::size_t kLocks = 64;
  ReceiveGate* gate_;
  SessionEpoch epoch_;
  std::uint32_t slot_count_;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<std::mutex[]> locks_;
};

class ReceiveGate {
 public:
  // One per receiving thread; must not outlive the gate.
  class Reader {
   public:
    explicit Reader(ReceiveGate& gate);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    static constexpr std::size_t kScratchBytes = 256U << 10;
    // For the thread's own use; bytes of refused writes go there, too. Aligned to a cache line.
    std::span<std::byte> scratch() { return std::as_writable_bytes(std::span(scratch_)); }

   private:
    friend class MarkScope;
    ReceiveGate& gate_;
    ReadMark* mark_;
    std::uint64_t sequence_ = 0;
    struct alignas(64) Line {
      std::array<std::byte, 64> bytes;
    };
    std::vector<Line> scratch_;
  };

  // threads: where the gate's own thread is listed.
  ReceiveGate(std::uint32_t max_grant_slots, CompletionSink& sink, ThreadRoster* threads = nullptr);
  ~ReceiveGate();  // as stop()
  ReceiveGate(const ReceiveGate&) = delete;
  ReceiveGate& operator=(const ReceiveGate&) = delete;

  // While no grant is open and no fence is under way, also anew: what a receiving thread reads of
  // the regions it reads under a mark, for which the fence of its grant has waited.
  void register_regions(std::span<const Region> regions);
  bool has_sessions() const;
  std::uint64_t largest_item_bytes() const { return largest_item_bytes_; }
  // From any thread.
  std::vector<TransportCounter> counters() const;

  // Null when a session of this epoch is open already.
  std::shared_ptr<SessionSlots> open_session(SessionEpoch epoch);
  void close_session(SessionEpoch epoch);
  // From any thread; null when there is none.
  std::shared_ptr<SessionSlots> find_session(SessionEpoch epoch) const;

  void open_grant(GrantId grant, std::vector<SlotGrant> slots);
  void fence(GrantId grant);
  // Completes the fences that are under way, then ends the thread. Receiving threads are gone by
  // then.
  void stop();

 private:
  friend class SessionSlots;
  friend class MarkScope;
  friend class IncomingFrame;

  struct HeldSlot {
    std::shared_ptr<SessionSlots> session;
    GrantSlot slot;
    Generation generation;
  };
  struct FenceJob {
    GrantId grant;
    std::vector<GrantSlot> slots;
  };
  struct Watched {
    const ReadMark* mark;
    std::uint64_t value;
  };

  // Where the write's bytes go, or null when no such bytes are registered here.
  std::byte* address_of(const IncomingWrite& write) const;
  bool hand_to_fencer(FenceJob job);  // false: it has ended
  void run_fences();
  std::vector<Watched> marks_in(std::span<const FenceJob> jobs) const;
  void wake_fencer();
  ReadMark* add_mark();

  const std::uint32_t max_grant_slots_;
  CompletionSink& sink_;
  std::vector<Region> regions_;  // fixed while a grant is open
  std::uint64_t largest_item_bytes_ = 0;
  GateCounters counters_;

  mutable std::mutex sessions_mutex_;
  std::unordered_map<SessionEpoch, std::shared_ptr<SessionSlots>> sessions_;
  std::unordered_map<GrantId, std::vector<HeldSlot>> grants_;  // the driver's alone

  mutable std::mutex marks_mutex_;
  std::vector<std::unique_ptr<ReadMark>> marks_;

  std::mutex fences_mutex_;
  std::condition_variable fences_changed_;
  std::vector<FenceJob> fences_;
  bool stopping_ = false;
  std::atomic<std::uint32_t> waiting_for_marks_{0};
  ThreadPlacePtr place_;
  std::thread fencer_;
};

// A thread's mark, up for the life of this object, and the generation check that follows it.
class MarkScope {
 public:
  MarkScope(ReceiveGate::Reader& reader, const SessionSlots& slots, GrantSlot slot,
            Generation generation);
  ~MarkScope();
  MarkScope(const MarkScope&) = delete;
  MarkScope& operator=(const MarkScope&) = delete;

  // Whether the grant was open after the mark went up; while this object lives its fence waits.
  bool is_live() const { return live_; }

 private:
  ReceiveGate::Reader& reader_;
  bool live_ = false;
};

}  // namespace kvferry::data_plane
