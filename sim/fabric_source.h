// The source side of every kind: per session a queue, lanes, frames under way, and what their
// tickets' owner has been told. The model of data_plane/lanes/source_session.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/action.h"
#include "sim/fabric_frame.h"

namespace kvferry::sim {

class FabricSource final : public FrameListener {
 public:
  explicit FabricSource(FabricContext& context) : context_(context) {}
  // Before anything else. The two ends are made one after the other and need each other.
  void connect(FrameReceiver& receiver) { receiver_ = &receiver; }

  // --- sessions; a write waits in the queue until both ends are open ---
  bool open_source(ProcessKey source, SessionEpoch epoch);  // false: open already
  void open_target(ProcessKey target, SessionEpoch epoch);
  void close_source(ProcessKey source, SessionEpoch epoch);
  // Its end is closed or its process is dead; the receiver knows already.
  void target_gone(ProcessKey target, SessionEpoch epoch);

  void post(ProcessKey source, const core::PostWrites& post);
  void give_up(ProcessKey source, const core::GiveUpWrites& order);

  void process_died(ProcessKey process);
  void process_resumed(ProcessKey process);

  void reset_some_lane(Prng& prng);
  void flush_some_session(Prng& prng);
  void heal(bool leave_stalled);

  bool reads_source(const WriteName& name) const;
  std::uint64_t writes_under_way() const;

  // FrameListener
  void frame_ended(Frame& frame) override;
  void lane_given_up(Frame& frame) override;
  std::vector<std::uint64_t> frames_of(SessionEpoch epoch) const override;

 private:
  struct Lane {
    std::uint64_t serial = 0;
    bool is_up = true;
    bool is_stuck = false;  // a frame on it has stopped in the middle
    std::vector<std::uint64_t> frames;
    Instant last_arrival;  // nothing overtakes on a lane
  };
  // From post until its owner has had the last word and no copy of it is left.
  struct Ticket {
    std::uint32_t copies = 0;  // frames that carry it; none while it is queued
    bool told_unknown = false;
    bool is_settled = false;
    WriteResult best = WriteResult::kOpen;  // of the copies that have ended
  };
  struct Session {
    ProcessKey source;
    ProcessKey target;
    bool source_open = false;
    bool target_open = false;
    std::deque<layout::Write> queue;
    std::vector<Lane> lanes;
    std::uint64_t next_serial = 1;
    std::set<std::uint64_t> frames;                // launched and not answered
    std::unordered_map<TicketId, Ticket> tickets;  // looked up, never walked
    std::map<GrantSlot, Generation> given_up;
    std::vector<std::uint64_t> held_departs;  // the source is paused
    bool pump_planned = false;
    Instant unreachable_since;
    bool unreachable_told = false;
  };
  // What one happening tells the source's core, in batches as a transport does.
  struct Words {
    std::vector<layout::WriteCompletion> completed;
    std::vector<TicketId> quiet;
  };

  Session* find(SessionEpoch epoch);
  bool is_given_up(const Session& session, const WriteName& name) const;
  Instant now() const;
  void end_unserved(SessionEpoch epoch);
  void say(const Session& session, SessionEpoch epoch, Words words, bool twice = false);
  void fail_lane(ProcessKey process, SessionEpoch epoch, const char* what, bool all_lanes);
  void watch_reachability(SessionEpoch epoch);

  // --- fabric_source.cc: queue and words ---
  void plan_pump(SessionEpoch epoch);
  void pump(SessionEpoch epoch);
  void expire(SessionEpoch epoch, const std::vector<TicketId>& tickets);
  void tell_unknown(std::uint64_t number);
  void make_unknown(Session& session, Frame& frame, Words& words);
  bool all_unknown(Session& session, const Frame& frame) const;
  static bool all_settled(const Session& session, const Frame& frame);
  void answer_silent(Session& session, Frame& frame);
  void plan_answer(Frame& frame, Duration delay);
  void finish(Frame& frame);
  void apply(Session& session, Frame& frame, Words& words);
  void leave_lane(Session& session, const Frame& frame);

  // --- fabric_lanes.cc: frames under way ---
  void launch(Session& session, SessionEpoch epoch, std::size_t lane);
  void launch_second_copy(Session& session, const Frame& first);
  FrameFate draw_fate(std::uint64_t size);
  void cut_into_parts(Frame& frame, Prng& prng);
  void plan_depart(const Frame& frame, Duration delay);
  void depart(std::uint64_t number, std::size_t part);
  void depart_next(Session& session, std::uint32_t lane);
  void plan_arrival(Session& session, Frame& frame, Duration delay);
  void plan_rest(Session& session, Frame& frame);
  void plan_part(Frame& frame, std::size_t part, Instant at);
  void arrive(std::uint64_t number, std::size_t part);
  void lose(std::uint64_t number);
  void capture(Frame& frame, std::uint64_t until);
  void take_back(Session& session, Frame& frame, bool to_queue, Words& words);
  void end_here(Frame& frame, WriteResult result);
  void reset_lane(SessionEpoch epoch, std::size_t index);
  void reset_frame(Session& session, Frame& frame, Duration renewal, Words& words);
  void orphan(Session& session, Frame& frame);
  void fell_silent(std::uint64_t number);
  void leave_writer(Session& session, Frame& frame);
  void hasten(Session& session, Frame& frame);
  void close_frame(Session& session, Frame& frame, Words& words);

  FabricContext& context_;
  FrameReceiver* receiver_ = nullptr;
  std::map<SessionEpoch, Session> sessions_;
};

}  // namespace kvferry::sim
