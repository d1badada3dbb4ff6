// The scheduler of one side: what an engine does in each step. It polls the rooms that have
// changed, takes what each new status asks for, takes back pages, opens the next room where a lane
// is free, and sleeps on the manager's descriptor when there was nothing to do.
//
// Lane k runs rooms first_room + k, first_room + k + concurrency, ...: both sides come to the same
// lane for a room without a word between them.
#pragma once

#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "bench/handoff/latencies.h"
#include "bench/handoff/room_plan.h"
#include "kvferry/kv_manager.h"

namespace kvferry::bench {

// What one side saw of a turn; goes to the controller as it is.
struct SideResult {
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;         // ended as failed, aborted ones too
  std::uint64_t unasked = 0;        // failed though neither side was to abort them
  std::uint64_t hung = 0;           // had not ended, or their pages were not back, in time
  std::uint64_t wrong_items = 0;    // pages in a region that did not hold what they must
  std::uint64_t touched_items = 0;  // that changed while they were nobody's
  std::uint64_t changed_ends = 0;   // rooms whose terminal status was not their last
  std::uint64_t stray_pages = 0;    // came back though they were not lent
  std::uint64_t aborts = 0;         // calls of abort()
  Duration duration{};              // from the first open until the last room's end
  Duration p50{};                   // from a room's open until its end was read
  Duration p99{};
  Duration max{};
  Duration cpu{};  // of the whole process
  std::uint64_t turns = 0;
  // After the turn.
  std::uint64_t descriptors = 0;
  std::uint64_t open_handles = 0;
  std::uint64_t open_rooms = 0;
  std::uint64_t open_grants = 0;
  std::uint64_t open_tickets = 0;
  std::uint64_t quarantine_pages = 0;
  std::array<char, 256> first_failure{};
};

// What differs between prefill and decode. Called by the loop alone.
class RoomSide {
 public:
  virtual ~RoomSide() = default;
  // Opens the room and returns its handle's id.
  virtual std::uint64_t open(std::uint32_t lane, std::uint64_t room) = 0;
  // A new status that is no end.
  virtual void step(std::uint32_t lane, std::uint64_t room, KvPoll status) = 0;
  // Whether kvferry holds the lane's pages, to be given back by take_released().
  virtual bool is_lent(std::uint32_t lane, KvPoll end) const = 0;
  // After its end was read.
  virtual void check(std::uint32_t lane, std::uint64_t room, KvPoll end) = 0;
  virtual void abort(std::uint32_t lane) = 0;
  virtual KvPoll poll(std::uint32_t lane) = 0;
  virtual std::string failure(std::uint32_t lane) const = 0;
  // Drops the handle; its pages are back.
  virtual void close(std::uint32_t lane) = 0;
  virtual bool aborts(const AbortPlan& plan) const = 0;
};

class RoomLoop {
 public:
  RoomLoop(KvManager& manager, RoomSide& side, const HandoffOrder& order,
           std::uint32_t pages_per_room);
  // Runs all rooms of the order. started is called when the first lanes are open.
  SideResult run(const std::function<void()>& started);

 private:
  struct Lane {
    std::uint64_t room = 0;  // 0: none
    Instant opened;
    bool ended = false;
    bool is_back = false;  // its pages came back before the end was read
    AbortPlan abort;
    bool abort_due = false;
  };
  bool open_rooms();
  bool poll_rooms();
  bool poll_changed(const std::vector<std::uint64_t>& changed);
  bool poll_all();
  void note_status(std::uint32_t lane, KvPoll status);
  bool take_pages();
  void abort_rooms();
  void note_end(std::uint32_t lane, KvPoll status);
  void finish(std::uint32_t lane);
  void note_failure(std::uint32_t lane, bool is_asked);
  void sleep();

  KvManager& manager_;
  RoomSide& side_;
  const HandoffOrder order_;
  const std::uint32_t pages_per_room_;
  std::vector<Lane> lanes_;
  std::vector<std::uint64_t> ids_;
  boost::unordered_flat_map<std::uint64_t, std::uint32_t> lane_of_;  // by id
  std::vector<KvPoll> statuses_;  // as they were read, of all or of those that changed
  std::vector<KvPoll> seen_;
  std::vector<std::uint32_t> idle_;
  std::vector<std::uint32_t> aborting_;  // lanes with an abort that is still to come
  std::uint64_t finished_ = 0;
  SideResult result_;
  Latencies latencies_;
};

}  // namespace kvferry::bench
