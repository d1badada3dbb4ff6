// The kinds of faults (docs/invariants.md, "Fault kinds"), which of them a run may use, and which
// of them fired. A draw is made whether or not its kind is enabled, so that switching kinds off
// (--faults) leaves all other draws as they were.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/prng.h"
#include "kvferry/status.h"

namespace kvferry::sim {

enum class Fault : std::uint8_t {
  // control links
  kLoss,
  kDelay,
  kReorder,
  kDuplicate,
  kReplay,     // of a frame that is very old, perhaps of a former life
  kPartition,  // a pair, both ways
  kPartitionOneWay,
  kIsolate,      // one process from all others
  kClog,         // nothing passes for a while, nothing is lost
  kSwizzleClog,  // several clogs that open in another order
  kReset,        // a connection breaks while both processes live
  kHalfOpen,     // sends succeed, nothing arrives
  kSlowReader,   // the socket's queue is full: frames are lost at the sender
  kTruncate,
  kBitFlip,
  // data plane
  kSlowWrite,
  kCompletionLost,  // unknown at its deadline, although it landed; quiet comes later
  kCompletionLate,
  kCompletionTwice,  // to the source's core, or a landing to the target's
  kErrorLanded,      // unknown at once, although it landed
  kErrorNothing,     // refused or unknown, and nothing landed
  kPartlyLanded,
  kWriteOutlives,  // lands after its process has died
  kLaneReset,
  kFrameTwice,  // a second copy of a frame, on another lane
  kBadKey,      // a data session can't be opened
  kFlushStorm,  // everything queued in a session comes back refused at once
  kSlowFence,
  kStalledFrame,  // a writer stops in the middle of a frame
  kSlowCopy,      // a receiving thread loses its core with its mark up
  // processes
  kCrash,
  kRestart,  // at the same address
  kPause,    // and then goes on, as a zombie
  kSlowTurn,
  kStop,      // the manager stops in good order
  kRelaunch,  // all ranks of an engine restart, with a new engine epoch
  // bootstrap
  kRegistryDown,
  kRegistryEmpty,
  kRegistryStale,  // rows of a former life
  kRegistrySlow,
  kRegistryMissing,  // a rank is not there
  kRegistryDouble,   // a rank is there twice
  // clocks
  kEarlyTimer,
  kLateTimer,
  kClockSkew,
  // capacity
  kPagesExhausted,
  kAuxExhausted,
  kSlotsExhausted,
  kTombstonesFull,
  kOutboxFull,
  kQuarantineFull,
  // callers
  kAbort,
  kAbortTwice,
  kAbortAfterEnd,
  kClearUnread,  // a handle goes before its end was read
  kSendAfterAbort,
  kRoomReused,     // the number of a room that has not ended everywhere
  kDuplicateRoom,  // number and binding of a room that is open
  kZeroPages,
  kTooManyPages,  // the sender gives more than was granted
  kWrongCount,    // the sender announces another number than was granted
  kBrokenAux,
  kSamePageTwice,  // a page that is in another grant
  kLateSender,     // opens long after its grants came
  kOneRankFails,   // one of several ranks aborts, the others go on
  kUnlikeGrants,   // one decode rank names another prefix than its siblings
  kLateReceiver,   // decode opens long after prefill, whose senders may have ended by then
  kCount
};
inline constexpr std::size_t kFaultKinds = static_cast<std::size_t>(Fault::kCount);
using FaultSet = std::bitset<kFaultKinds>;

std::string_view to_string(Fault fault);
std::optional<Fault> fault_from(std::string_view name);
// "crash,replay"; names as to_string gives them, "none", "all"; a failure names the word that is
// wrong.
Result<FaultSet> faults_from_list(std::string_view list);

class Faults {
 public:
  explicit Faults(FaultSet enabled) : enabled_(enabled) {}

  bool may(Fault fault) const { return enabled_.test(static_cast<std::size_t>(fault)); }
  // Draws always; true, and counted, when the kind is enabled and the draw hits.
  bool strikes(Fault fault, Prng& prng, std::uint32_t per_mille) {
    const bool hit = prng.below(1'000) < per_mille;
    if (!hit || !may(fault)) {
      return false;
    }
    note(fault);
    return true;
  }
  // For faults whose place is decided elsewhere.
  void note(Fault fault) { ++fired_[static_cast<std::size_t>(fault)]; }
  void disable(Fault fault) { enabled_.reset(static_cast<std::size_t>(fault)); }
  void disable_all() { enabled_.reset(); }
  const std::array<std::uint32_t, kFaultKinds>& fired() const { return fired_; }
  std::string list_of_fired() const;

 private:
  FaultSet enabled_;
  std::array<std::uint32_t, kFaultKinds> fired_{};
};

}  // namespace kvferry::sim
