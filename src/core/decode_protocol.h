// The decode role: rooms, grants, quarantine. decode_protocol.cc has what concerns rooms and peers,
// decode_transfer.cc what concerns grants and bytes, invariants.cc what must never be seen.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/decode_room.h"
#include "core/flat_map.h"
#include "core/number_map.h"
#include "core/page_ledger.h"
#include "core/rising_set.h"
#include "core/role_protocol.h"
#include "core/slot_allocator.h"
#include "core/timer_queue.h"

namespace kvferry::core {

class DecodeProtocol final : public RoleProtocol {
 public:
  DecodeProtocol(ProtocolConfig config, Environment& environment);

  Snapshot snapshot(Instant now, std::size_t max_rooms_shown) const override;
  std::vector<std::string> check_invariants() const override;

 private:
  void settle(Event& event) override;
  void settle(SessionOutput& output) override;
  bool run_due_timer() override;
  Instant next_room_deadline() const override { return timers_.next(); }
  Instant opened_at(std::uint64_t owner) const override { return find(ReceiverId(owner))->opened; }

  enum class TimerKind : std::uint8_t { kRoom, kSlow, kFence };
  struct TimerKey {
    TimerKind kind{};
    ReceiverId receiver;
    friend bool operator==(const TimerKey&, const TimerKey&) = default;
  };
  struct TimerKeyHash {
    std::size_t operator()(const TimerKey& key) const noexcept {
      return std::hash<ReceiverId>{}(key.receiver) * 4 + static_cast<std::size_t>(key.kind);
    }
  };
  // What this side keeps of a live session.
  struct SessionSlots {
    SessionSlots(std::uint32_t limit, Guards guards) : slots(limit, guards) {}
    SlotAllocator slots;
    std::vector<ReceiverId> owners;  // by slot; 0: nobody
    // Attempts with a grant that is not released or a message that is not acknowledged; the
    // low-water mark stays below them (rule 7).
    RisingSet<AttemptId> open_attempts;
    Generation last_generation;
  };

  using ReplicaPlan =
      std::vector<std::pair<layout::Writer, std::shared_ptr<const layout::CopyPlan>>>;

  // decode_protocol.cc: events
  void on(ReceiverOpened& event);
  void on(PrefillNamed& event);
  void on(MetadataGiven& event);
  void on(ReceiverAborted& event);
  void on(ReceiverCleared& event);
  void on(PrefillResolved& event);
  void on(PairsWanted& event);
  void on(StopRequested& event);
  // decode_transfer.cc: events
  void on(WritesLanded& event);
  void on(WriteTorn& event);
  void on(FenceCompleted& event);
  void on(SessionTornDown& event);
  // Of the other role: a runtime that sends them is broken, and they are counted.
  template <typename Other>
  void on(Other&) {
    sink_->count("misdirected_events");
  }

  // decode_protocol.cc
  void session_started(const SessionStarted& started);
  void session_over(const SessionOver& over);
  void peer_refused(const PeerRefused& refused);
  void owner_settled(const OwnerSettled& settled);
  void deliver(MessageDelivered& delivered);
  Result<const ReplicaPlan*> plan_replica(const std::vector<const Session*>& live);
  void advance_bootstrap(DecodeRoom& room);
  void fail_room(DecodeRoom& room, Failure cause);
  void tell_writers_of_failure(DecodeRoom& room);
  std::optional<Failure> refuse_in_quarantine() const;
  void set_deadline(DecodeRoom& room, std::uint32_t after_ms);
  void cancel_deadline(const DecodeRoom& room);
  void room_deadline(DecodeRoom& room);
  void drop_interests(DecodeRoom& room);
  void leave_open_attempts(DecodeRoom& room);
  bool has_unsettled(SessionEpoch epoch, const DecodeRoom& room) const;
  void forget_if_over(ReceiverId receiver);
  void enter(DecodeRoom& room, RoomTrigger trigger);
  void enter(DecodeRoom& room, GrantTrigger trigger);
  DecodeRoom* find(ReceiverId receiver) const;
  DecodeRoom* find_by_attempt(AttemptId attempt);
  // Both null when nothing of that name is granted; the writer is null when the generation is
  // another (nullopt: any).
  std::pair<DecodeRoom*, Writer*> find_by_slot(SessionEpoch epoch, GrantSlot slot,
                                               std::optional<Generation> generation);
  std::pair<DecodeRoom*, Writer*> find_landed(const layout::Landing& landing);
  // Whose word it is, with the writer that said it; as above.
  std::pair<DecodeRoom*, Writer*> find_speaker(SessionEpoch epoch, AttemptId attempt,
                                               GrantSlot slot, Generation generation);
  AttemptId low_water_mark(SessionEpoch epoch) const;
  void send(DecodeRoom& room, SessionEpoch epoch, wire::Message message, Urgency urgency);

  // invariants.cc
  void note_named(SessionSlots& session, const SlotName& name);

  // decode_transfer.cc
  void grant(DecodeRoom& room);
  Status check_metadata(const DecodeRoom& room) const;
  Status plan_writers(DecodeRoom& room);
  wire::Grant grant_message(const DecodeRoom& room, const Writer& writer) const;
  void landed(DecodeRoom& room, Writer& writer, std::span<const layout::Landing> landings);
  void advance_transfer(DecodeRoom& room);
  void start_fence(DecodeRoom& room);
  void end_fence(DecodeRoom& room);
  void fence_overdue(DecodeRoom& room);
  void release_if_quiet(DecodeRoom& room);
  bool is_covered(const DecodeRoom& room) const;
  bool is_committed(const DecodeRoom& room) const;
  void try_succeed(DecodeRoom& room);
  void release(DecodeRoom& room);
  void free_slots(DecodeRoom& room);
  void handle(SessionEpoch epoch, const wire::Done& done);
  void handle(SessionEpoch epoch, const wire::Drained& drained);
  void handle(SessionEpoch epoch, const wire::Failed& failed);
  void handle(SessionEpoch epoch, const wire::Progress& progress);
  void handle(SessionEpoch epoch, const wire::Stale& stale);

  PageLedger ledger_;
  // What each of a replica's prefill ranks writes here, by the sessions with them.
  std::map<std::vector<SessionEpoch>, ReplicaPlan> replica_plans_;
  NumberMap<ReceiverId, std::unique_ptr<DecodeRoom>> rooms_;
  FlatMap<RoomKey, ReceiverId> open_;          // rooms without a terminal status
  NumberMap<AttemptId, ReceiverId> attempts_;  // from the grant on
  NumberMap<GrantId, ReceiverId> grants_;
  std::size_t holding_rooms_ = 0;  // by the state of their grant
  std::unordered_map<SessionEpoch, SessionSlots> slots_;
  TimerQueue<TimerKey, TimerKeyHash> timers_;
  AttemptId next_attempt_{1};
  GrantId next_grant_{1};
  std::set<ReceiverId> overdue_;
};

}  // namespace kvferry::core
