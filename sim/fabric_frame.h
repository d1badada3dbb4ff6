// One frame of writes under way, and what all parts of the fabric share. A frame is known by its
// number: happenings look it up again, since a reset, a close or a death may have taken it away
// meanwhile.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "base/prng.h"
#include "core/event.h"
#include "layout/write.h"
#include "sim/model_guard.h"
#include "sim/oracle.h"
#include "sim/profile.h"

namespace kvferry::sim {

// One process life at its place; a successor at the place has another.
struct ProcessKey {
  std::uint32_t place = 0;
  std::uint32_t life = 0;
  friend auto operator<=>(const ProcessKey&, const ProcessKey&) = default;
};
inline constexpr ProcessKey kNobody{};  // lives start at 1

// How a write of a frame ended where it was to land. kTorn stands for all that can't be known to
// have landed and of which no more will come.
// kFenced: as refused, and the grant is over.
enum class WriteResult : std::uint8_t { kOpen, kLanded, kRefused, kFenced, kTorn };

struct FrameItem {
  layout::Write write;
  std::uint64_t begin = 0;    // of its bytes within the frame's payload
  bool goes_to_page = false;  // claimed by this frame, and not fenced since
  bool claimed = false;
  bool touched = false;          // some byte of the target changed
  bool is_second_copy = false;   // its ticket's outcome is the first copy's
  bool refused_at_once = false;  // a missing guard: told although another copy is under way
  WriteResult result = WriteResult::kOpen;

  std::uint64_t end() const { return begin + write.length; }
};

// What happens to a frame, drawn when it is launched, so that healing the world changes no fate.
struct FrameFate {
  bool answer_lost = false;  // its source hears nothing; unknown at the deadline, quiet later
  bool answer_twice = false;
  bool told_unknown = false;      // an error is reported at once, and yet it goes on
  bool never_arrives = false;     // an error, and nothing lands
  bool error_is_refusal = false;  // of never_arrives: the source knows that nothing landed
  bool damaged = false;           // its header names bytes that are not its writer's
  bool torn = false;              // the last part does not come: void
  bool second_copy = false;       // on another lane
  bool stalled = false;           // the writer stops after the first part
  bool stopped_for_good = false;  // of stalled: goes on only when the world is healed
  bool slow_copy = false;
  Duration slow_copy_for{};
  bool slow_copy_midway = false;  // the core is lost between two bytes, not before the first
  Duration stall{};
  Duration latency{};
  Duration answer_latency{};
  Duration landing_delay{};  // from the end of the copy to the mailbox of the target's core
  bool landing_twice = false;
  Duration landing_again_after{};
};

struct Frame {
  std::uint64_t number = 0;
  WriteName name;
  ProcessKey source;
  ProcessKey target;
  std::uint32_t lane = 0;
  std::uint64_t lane_serial = 0;  // of the lane's life that carries it
  std::vector<FrameItem> items;
  std::vector<std::byte> payload;
  std::uint64_t captured = 0;        // bytes of payload that have left the source
  std::vector<std::uint64_t> parts;  // where each part ends; the last is the payload's size
  std::size_t departed = 0;          // parts
  std::size_t arrived = 0;
  Instant last_arrival;   // of a part, as planned: parts do not overtake each other
  std::size_t taken = 0;  // by the target
  FrameFate fate;
  bool is_second_copy = false;
  bool is_void = false;     // the source gave up before its last byte had left
  bool is_orphan = false;   // its source's process is dead, its bytes have all left
  bool lane_lost = false;   // no further part of it comes
  bool skips_rest = false;  // of lane_lost: nor is what has come looked at any more
  bool has_begun = false;   // its claims were decided
  bool has_ended = false;   // every item has its result, nothing of it reads or lands any more
  bool is_silent = false;  // nobody will ever answer it: the deadline or the close ends its tickets
  bool quiet_is_withheld = false;     // its writer has stopped: no quiet before the close
  bool is_reported_early = false;     // a missing guard: answered before it was copied
  bool is_last_word_planned = false;  // of is_silent: its tickets are unknown, quiet is on its way
  bool is_answered = false;           // its source has had the last word; it goes when it has ended
  std::uint32_t answer_number = 0;    // of the answer that counts; an earlier one was lost

  std::uint64_t size() const { return payload.size(); }
  bool is_complete() const { return departed == parts.size(); }
};

class Node;
class World;

// Means of what both ends draw.
inline constexpr Duration kSoon = std::chrono::microseconds(20);  // a frame's way, a turn
inline constexpr Duration kNotice =
    std::chrono::milliseconds(5);  // until an end learns of a broken lane

// Shared by both ends. Forked per concern, so that what one draws leaves the others as they were.
struct FabricContext {
  FabricContext(World& the_world, Prng prng, ModelGuard missing_guard);

  bool lacks(ModelGuard guard) const { return missing == guard; }
  // Null when that life is over.
  Node* alive(ProcessKey process) const;
  bool is_running(ProcessKey process) const;
  Frame* find(std::uint64_t number);
  Frame& add();
  void erase(std::uint64_t number) { frames.erase(number); }
  // Draws always, also when the kind is disabled.
  bool strikes(Fault fault, Prng& prng);
  void trace(const Frame& frame, std::string_view what);
  // Leaves the event in the process's mailbox, now or after a delay, if that life is not over by
  // then.
  void tell(ProcessKey process, core::Event event);
  void tell_after(ProcessKey process, Duration delay, core::Event event);
  // Exponential, never zero.
  static Duration around(Duration mean, Prng& prng);

  World& world;
  const ModelGuard missing;
  const TransportKind kind;
  Prng fates;
  Prng latency;
  Prng threads;
  std::unordered_map<std::uint64_t, std::unique_ptr<Frame>> frames;  // looked up, never walked
  std::uint64_t next_frame = 1;
  std::function<void(const Node&, const core::Event&)> watch;  // sees what is told
};

// The source's ear at the target.
class FrameListener {
 public:
  virtual ~FrameListener() = default;
  // Every item has its result and, unless is_reported_early, nothing of the frame happens any more.
  virtual void frame_ended(Frame& frame) = 0;
  // The target has given up a lane on which the rest of a frame never came.
  virtual void lane_given_up(Frame& frame) = 0;
  // All frames that were launched in the session.
  virtual std::vector<std::uint64_t> frames_of(SessionEpoch epoch) const = 0;
};

// Where frames arrive: with the target's help (FabricTarget) or without (OneSidedTarget).
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  virtual bool open_session(ProcessKey target, SessionEpoch epoch) = 0;  // false: open already
  virtual void close_session(ProcessKey target, SessionEpoch epoch) = 0;
  virtual void open_grant(ProcessKey target, const core::OpenGrant& open) = 0;
  virtual void fence(ProcessKey target, GrantId grant) = 0;
  virtual void part_arrived(Frame& frame) = 0;
  // No further part of it comes. It ends, perhaps later, as far as it has got.
  virtual void lane_lost(Frame& frame) = 0;
  // A frame of the session ended without its help: nothing of it is under way any more.
  virtual void ended_at_source(ProcessKey target, SessionEpoch epoch) = 0;
  virtual void process_died(ProcessKey target) = 0;
  virtual void process_resumed(ProcessKey target) = 0;
  virtual void heal() = 0;  // what takes its time goes on now
};

}  // namespace kvferry::sim
