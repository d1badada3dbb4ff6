// What both roles do alike in a step: events in order, sessions, the pause rule, timers, output.
// The role decides what an event and a session's output mean for its rooms.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol.h"
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
  // A transition that the tables lack is a bug of ours; check_invariants() shows it.
  void report_missing_row(std::string_view machine, std::string_view state,
                          std::string_view trigger);

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

  Instant last_step_;
  bool stepped_ = false;
  bool timers_deferred_ = false;
};

}  // namespace kvferry::core
