// The prefill role: senders, the grants they serve, source pages. prefill_protocol.cc has what
// concerns senders and peers, prefill_grants.cc how grants come, prefill_transfer.cc writes and
// what follows from them, invariants.cc what must never be seen.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/ended_rooms.h"
#include "core/flat_map.h"
#include "core/number_map.h"
#include "core/prefill_room.h"
#include "core/role_protocol.h"
#include "core/timer_queue.h"
#include "core/tombstones.h"
#include "core/write_tracker.h"

namespace kvferry::core {

class PrefillProtocol final : public RoleProtocol {
 public:
  PrefillProtocol(ProtocolConfig config, Environment& environment);

  Snapshot snapshot(Instant now, std::size_t max_rooms_shown) const override;
  std::vector<std::string> check_invariants() const override;

 private:
  void settle(Event& event) override;
  void settle(SessionOutput& output) override;
  bool run_due_timer() override;
  Instant next_room_deadline() const override {
    return std::min(timers_.next(), unopened_timers_.next());
  }
  Instant opened_at(std::uint64_t owner) const override { return find(SenderId(owner))->opened; }

  enum class TimerKind : std::uint8_t { kRoom, kSlow, kSourceHold };
  struct TimerKey {
    TimerKind kind{};
    SenderId sender;
    friend bool operator==(const TimerKey&, const TimerKey&) = default;
  };
  struct TimerKeyHash {
    std::size_t operator()(const TimerKey& key) const noexcept {
      return std::hash<SenderId>{}(key.sender) * 4 + static_cast<std::size_t>(key.kind);
    }
  };
  // What this side keeps of a session with a decode rank. Outlives the session while tickets of it
  // are not settled.
  struct SessionRecord {
    explicit SessionRecord(std::uint32_t max_tombstones) : tombstones(max_tombstones) {}
    std::optional<layout::CopyPlan> plan;  // empty: this rank has nothing for that one
    Tombstones tombstones;
    WriteTracker writes;
    NumberMap<AttemptId, SenderId> attempts;  // grants in use
    bool over = false;
  };
  struct UnopenedGrant {
    SessionEpoch epoch;
    wire::Grant grant;
  };

  // prefill_protocol.cc: events
  void on(SenderOpened& event);
  void on(SenderInitialized& event);
  void on(ChunkGiven& event);
  void on(SenderAborted& event);
  void on(SenderCleared& event);
  void on(StopRequested& event);
  // prefill_transfer.cc: events
  void on(WritesCompleted& event);
  void on(WritesQuiet& event);
  template <typename Other>
  void on(Other&) {
    sink_->count("misdirected_events");
  }

  // prefill_protocol.cc
  void session_started(const SessionStarted& started);
  void session_over(const SessionOver& over);
  void deliver(MessageDelivered& delivered);
  void fail_room(PrefillRoom& room, Failure cause);
  void remember_ended(const RoomKey& key, const Failure& cause);
  bool has_needed_grants(const PrefillRoom& room) const;
  void release_if_fenced(PrefillRoom& room);
  void release_source(PrefillRoom& room);
  void release_if_settled(PrefillRoom& room);
  void give_up_source(PrefillRoom& room);
  void finish_if_consumed(PrefillRoom& room);
  void forget_if_over(SenderId sender);
  void set_deadline(PrefillRoom& room, std::uint32_t after_ms);
  void cancel_deadline(const PrefillRoom& room);
  void enter(PrefillRoom& room, RoomTrigger trigger);
  void enter(Target& target, TargetTrigger trigger);
  PrefillRoom* find(SenderId sender) const;
  PrefillRoom* find(const RoomKey& key);
  PrefillRoom* find(const SessionRecord& record, AttemptId attempt) const;
  void drop_record_if_idle(SessionEpoch epoch);

  // invariants.cc
  void check_source(const PrefillRoom& room);

  // prefill_grants.cc
  void handle(SessionEpoch epoch, wire::Grant& grant);
  void attach(PrefillRoom& room, SessionEpoch epoch, wire::Grant grant);
  Status check_grant(const PrefillRoom& room, SessionEpoch epoch, const wire::Grant& grant) const;
  void refuse_grant(SessionEpoch epoch, const wire::Grant& grant, const Failure& cause);
  void wait_for_sender(SessionEpoch epoch, wire::Grant grant);
  void adopt_unopened(PrefillRoom& room);
  void drop_unopened(SessionEpoch epoch, AttemptId attempt);
  void unopened_deadline(const RoomKey& key);
  void end_request(const RoomKey& key, const Failure& cause);
  void refuse_unopened(const RoomKey& key, const Failure& cause);

  // prefill_transfer.cc
  void handle(SessionEpoch epoch, const wire::Abort& abort);
  void handle(SessionEpoch epoch, const wire::Consumed& consumed);
  void handle(SessionEpoch epoch, const wire::Fenced& fenced);
  void pump(PrefillRoom& room);
  void post_ready(PrefillRoom& room, Target& target);
  void post(PrefillRoom& room, Target& target, const std::vector<layout::ByteCopy>& copies);
  SenderId completed(const layout::WriteCompletion& completion);
  void publish_landed_bytes(SenderId sender);
  void repost_or_fail(PrefillRoom& room, Target& target, TrackedWrite tracked);
  void settle_ticket(SessionRecord& record, Target* target, PrefillRoom* room, TicketId ticket);
  void await_first_cause(PrefillRoom& room, Failure own_cause);
  void unknown(TrackedWrite& tracked, bool torn, SessionRecord& record, PrefillRoom* room,
               Target* target);
  bool may_commit(const PrefillRoom& room, const Target& target) const;
  void commit_if_landed(PrefillRoom& room, Target& target);
  void drain_if_settled(PrefillRoom& room, Target& target);
  void say_drained(SessionEpoch epoch, const wire::Abort& abort);

  NumberMap<SenderId, std::unique_ptr<PrefillRoom>> rooms_;
  FlatMap<RoomKey, SenderId> open_;  // by match(), as the next two
  FlatMap<SessionEpoch, std::unique_ptr<SessionRecord>> records_;
  std::map<RoomKey, std::vector<UnopenedGrant>> unopened_;
  std::size_t unopened_count_ = 0;
  EndedRooms ended_;
  TimerQueue<TimerKey, TimerKeyHash> timers_;
  TimerQueue<RoomKey> unopened_timers_;  // of the grants in unopened_
  std::uint64_t held_pages_total_ = 0;
  std::uint64_t released_pages_total_ = 0;
};

}  // namespace kvferry::core
