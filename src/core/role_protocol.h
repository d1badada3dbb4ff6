// What both roles do alike in a step: events in order, sessions, the pause rule, timers, output.
// The role decides what an event and a session's output mean for its rooms.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol.h"
#include "core/rising_set.h"
#include "core/room_key.h"
#include "core/session_table.h"

namespace kvferry::core {

class RoleProtocol : public Protocol {
 public:
  void step(Instant now, std::span<Event> events, ActionSink& sink) final;
  Instant next_deadline() const final;

 protected:
  RoleProtocol(ProtocolConfig config, Environment& environment);

  // Events of rooms and of the transport; those of the links are settled before.
  virtual void settle(Event& event) = 0;
  virtual void settle(SessionOutput& output) = 0;
  // Settles one timer of a room that is due; false when none is.
  virtual bool run_due_timer() = 0;
  virtual Instant next_room_deadline() const = 0;
  // owner: of a room that is here.
  virtual Instant opened_at(std::uint64_t owner) const = 0;

  void settle_outputs();
  // What a request is looked up by: room and binding (rule 8).
  RoomKey match(const RoomKey& key) const {
    return guards_.has(Guard::kBinding) ? key : RoomKey{key.room, Binding{}};
  }
  bool is_same_room(const RoomKey& a, const RoomKey& b) const { return match(a) == match(b); }
  // The first cause on this rank names this rank.
  Failure with_rank(Failure cause) const;
  // Why a room can't be opened, as far as both roles know; nullopt when it can.
  std::optional<Failure> refuse_room(const RoomKey& key, bool is_open, std::size_t open) const;
  // --- bugs of ours: what is seen to be broken in the middle of a step stays in
  // check_invariants(). Each text starts with the invariant's id (docs/invariants.md). ---
  void report_broken(std::string text);
  // A transition that the tables lack.
  void report_missing_row(std::string_view machine, std::string_view state,
                          std::string_view trigger);
  // owner: the value of a ReceiverId or a SenderId.
  void note_opened(std::uint64_t owner);
  // S5 and R4: after a room's status has moved.
  void note_moved(std::uint64_t owner, KvPoll from, KvPoll to);
  // Of the rooms without a terminal status; 0 when there is none.
  std::int64_t oldest_room_ms(Instant now) const;
  // One line for a room that has used a quarter of its state's time: whoever reads the log need not
  // wait for the deadline to learn what it waits for.
  void note_slow(const RoomKey& key, AttemptId attempt, KvPoll status, std::string_view waits_for,
                 std::uint32_t deadline_ms);
  // R4: opened = succeeded + failed + live.
  void check_room_count(std::size_t live, std::vector<std::string>& broken) const;

  const ProtocolConfig config_;
  const Options& options_;
  const Guards guards_;
  SessionTable sessions_;
  std::vector<std::string> violations_;
  std::optional<Failure> stopping_;
  // Set for the length of one step.
  Instant now_;
  ActionSink* sink_ = nullptr;

 private:
  bool settle_link(Event& event);
  void run_timers();

  RisingSet<std::uint64_t> live_;  // owners; ids rise, so the oldest is the least
  std::uint64_t opened_rooms_ = 0;
  std::uint64_t succeeded_rooms_ = 0;
  std::uint64_t failed_rooms_ = 0;
  Instant last_step_;
  bool stepped_ = false;
  bool timers_deferred_ = false;
};

}  // namespace kvferry::core
