// The target side of the receiver-executed kinds: slots, claims, receiving threads with their
// marks, and fences. The model of data_plane/receive_gate.h and incoming_frame.h, one happening per
// step in which another thread could get between.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/action.h"
#include "sim/fabric_claims.h"
#include "sim/fabric_frame.h"

namespace kvferry::sim {

class FabricTarget final : public FrameReceiver {
 public:
  FabricTarget(FabricContext& context, FrameListener& listener)
      : context_(context), listener_(listener) {}

  bool open_session(ProcessKey target, SessionEpoch epoch) override;
  void close_session(ProcessKey target, SessionEpoch epoch) override;
  void open_grant(ProcessKey target, const core::OpenGrant& open) override;
  void fence(ProcessKey target, GrantId grant) override;
  void part_arrived(Frame& frame) override;
  void lane_lost(Frame& frame) override;
  void ended_at_source(ProcessKey, SessionEpoch) override {}
  void process_died(ProcessKey target) override;
  void process_resumed(ProcessKey target) override;
  void heal() override;

 private:
  // One grant's time in a slot. Kept after its fence, until the slot's next life, so that tickets
  // of a lost lane can still be answered.
  struct Life {
    Generation generation;
    layout::GrantExtent extent;
    FabricClaims claims;
  };
  struct Slot {
    bool is_open = false;
    std::unique_ptr<Life> life;
  };
  struct Session {
    bool is_open = false;  // its slots stay when it is closed, and when it is opened again
    std::map<GrantSlot, Slot> slots;
    std::vector<std::uint64_t> held;  // frames that wait for the end of a first copy
  };
  enum class Stage : std::uint8_t {
    kIdle,
    kMarked,
    kUnmarked,
    kCopy,
    kRest,
    kClear,
    kReport,
    kWait
  };
  struct Turn {
    std::uint64_t frame = 0;
    bool abandons = false;  // its lane is lost; otherwise its next part is here
  };
  struct Thread {
    std::deque<Turn> ready;
    std::uint64_t frame = 0;  // in hand; 0: none
    Stage stage = Stage::kIdle;
    std::uint64_t copied = 0;  // bytes of the frame, within the part in hand
    bool mark_up = false;
    GrantSlot marked;
    std::uint64_t marks = 0;  // raised so far, so that two marks for one slot differ
    bool step_held = false;   // its process is paused
  };
  struct HeldSlot {
    SessionEpoch session;
    GrantSlot slot;
    Generation generation;
  };
  struct Fence {
    GrantId grant;
    std::vector<std::pair<std::size_t, std::uint64_t>> watched;  // thread, its mark
  };
  struct Process {
    std::map<SessionEpoch, Session> sessions;
    std::map<GrantId, std::vector<HeldSlot>> grants;
    std::vector<Thread> threads;
    std::vector<Fence> fences;
    std::vector<GrantId> unseen;      // fences whose marks are gone and which take their time
    std::vector<GrantId> unreported;  // fences that are done while the process is paused
    bool shared_flag = false;         // what stands for all marks without kMarkPerThread
  };

  Process& process_of(ProcessKey key);
  Process* find_process(ProcessKey key);
  Session* session_of(const Frame& frame);
  Slot* slot_of(const Frame& frame);
  Thread& thread_of(Process& process, const Frame& frame);
  bool is_live(const Frame& frame);

  // --- a thread's steps ---
  void serve(ProcessKey key, std::size_t index);
  void plan_step(ProcessKey key, std::size_t index, Duration delay);
  void step(ProcessKey key, std::size_t index);
  void begin_part(ProcessKey key, std::size_t index, Frame& frame);
  void check(ProcessKey key, std::size_t index, Frame& frame);
  void judge(Frame& frame, bool live);
  void copy_step(ProcessKey key, std::size_t index, Frame& frame);
  void clear_step(ProcessKey key, std::size_t index, Frame& frame);
  void go_on_waiting(ProcessKey key, std::size_t index);
  void put_down(ProcessKey key, std::size_t index);
  void raise_mark(Process& process, Thread& thread, GrantSlot slot);
  void lower_mark(ProcessKey key, std::size_t index);

  // --- a frame's course ---
  void claim(Frame& frame, bool live);
  void claim_item(Frame& frame, FrameItem& item, Life* life, bool live);
  void damage(Frame& frame, FrameItem& item, const Life& life);
  void copy(Frame& frame, std::uint64_t from, std::uint64_t to);
  void report_early(Frame& frame);
  void finish(Frame& frame, bool valid);
  void abandon(Frame& frame);
  void tell_core(Frame& frame, bool live);
  bool settle_second_copies(Frame& frame, bool must_end);
  std::optional<WriteResult> outcome_of(const Frame& frame, TicketId ticket);
  void end(Frame& frame);
  void retry_held(ProcessKey key, SessionEpoch epoch);
  void give_up_lane(std::uint64_t number, std::size_t arrived);

  void finish_fence(ProcessKey key, GrantId grant);
  void report_fence(ProcessKey key, GrantId grant);

  FabricContext& context_;
  FrameListener& listener_;
  std::map<ProcessKey, Process> processes_;
};

// What a write says about itself where it lands.
layout::Landing landing_of(const Frame& frame, const FrameItem& item);
// Whether the bytes that the write names are registered at the place.
bool is_registered(const EngineMemory& memory, const layout::Write& write);
// Moves bytes [from, to) of the frame's payload to where its items go: out of what has left the
// source, or out of the source's memory.
void move_bytes(FabricContext& context, Frame& frame, std::uint64_t from, std::uint64_t to);

}  // namespace kvferry::sim
