// The protocol's guards by name, so that kvferry-lab can run it with one of them missing and the
// simulator can show that each is needed. Only code built with KVFERRY_LAB can miss any: in the
// product every question is answered at compile time and nothing of this is left (checked by
// tools/check_lab_symbols.py).
//
// A guard is asked where it stands:  if (guards_.has(Guard::kTombstone) && tombstone) ...
#pragma once

#include <cstdint>

namespace kvferry::core {

enum class Guard : std::uint8_t {
  kNone,  // nothing is missing
  // --- prefill ---
  kDrainedAfterSettled,  // Drained only when every ticket is settled
  kTombstone,            // a grant after its Abort starts nothing
  kRememberSucceeded,    // attempts that ended well are remembered, too (*)
  kEndedSender,          // a grant after its sender's end gets the first cause
  kDecodeEngineEpoch,    // all grants of a sender are of one launch of the decode engine
  kAllGrants,            // nothing is posted before every expected grant is here
  kDoneAfterLanded,      // Done only when every ticket has landed
  kNoDoneAfterEnd,       // no Done of a room that failed or gave its source up
  kSuccessOnConsumed,    // a sender's success is Consumed from every grant
  kSourceHeld,           // source pages stay until no ticket reads them
  kOwedAfterClear,       // a sender that was cleared stays until its writes have ended
  kUnknownNotReposted,   // an unknown ticket is never posted again under its grant
  kUnknownUntilQuiet,    // an unknown ticket is outstanding until it is quiet or fenced
  kPrefix,               // the sender is told of the prefix that decode has already
  kLowWaterMark,         // what lies below the mark is answered stale (*)
  kGrantFitsSender,      // a grant of another size than announced is refused (*)
  kGrantsAlike,          // the grants of a sender agree on their number and their size
  // --- decode ---
  kPagesLeaveLate,          // pages of a failed room stay until its grant is fenced or quiet
  kEveryWriterDrained,      // pages without a fence leave when the last writer is quiet
  kTeardownOfItsSession,    // the teardown of one session says nothing of another one's writers
  kNoReleaseByTimeout,      // an overdue fence frees nothing
  kFenceBeforeRelease,      // with a fence, Drained frees nothing
  kFenceBeforeSuccess,      // Success is fenced, too
  kLandingGeneration,       // a landing counts for the generation that it names
  kFreshGeneration,         // a slot that is used again has a new generation
  kWriterGeneration,        // what a writer says counts for the grant that it names
  kDoneNamesRoom,           // so does its Done, by room and binding, too (*)
  kPrefillEngineEpoch,      // all writers of a grant are of one launch of the prefill engine
  kEveryWriterDone,         // Success needs Done of every writer
  kDoneNeeded,              // coverage without Done is no success
  kDoneCounts,              // a Done whose count differs fails the room (*)
  kDoneOnce,                // a second Done of one writer counts nothing (*)
  kCoverageNeeded,          // Done without coverage is no success (*)
  kCoverageSet,             // coverage is a set, not a count
  kAuxChecked,              // aux is checked before Success
  kMarkBelowOpenAttempts,   // the mark stays below every attempt with a grant or a message out
  kGrantedPagesExclusive,   // a page is in one grant at most
  kQuarantineCap,           // at the cap new rooms are refused
  kAbortUntilAcknowledged,  // the fence ends quarantine, not Abort
  // --- both ---
  kCellDecides,             // Success only when the caller's cell took it
  kEveryStateHasADeadline,  // a room leaves each state by that state's deadline at the latest
  kBinding,                 // room and binding together name a request
  kTimerCancelled,          // a deadline that was replaced or cancelled never fires
  kPauseRule,               // after a pause the inbox is drained before timers run
  // --- sessions ---
  kSessionEpoch,            // what is said in another session changes nothing
  kPeerIncarnation,         // another incarnation at the address is another peer
  kAcknowledgedByCore,      // a message is repeated until the peer's core has processed it
  kReceivedOnce,            // a message that comes twice is processed once
  kHelloNonce,              // an old hello replaces no session
  kResumeNeedsState,        // a session is resumed only where both sides hold its state
  kEndedNotResumed,         // a session that one side has ended is never resumed
  kEndedSessionFailsRooms,  // rooms of a session that is over fail
};

// Guards marked (*) stand behind another one that nearly always catches first what they are for;
// missing, they take that one along, else nothing could show that they are needed.
constexpr bool takes_along(Guard missing, Guard other) {
  switch (missing) {
    case Guard::kRememberSucceeded:
      return other == Guard::kReceivedOnce || other == Guard::kLowWaterMark;
    case Guard::kLowWaterMark:
    case Guard::kDoneOnce:
      return other == Guard::kReceivedOnce;
    case Guard::kGrantFitsSender:
      return other == Guard::kDoneCounts;
    case Guard::kDoneCounts:
      return other == Guard::kGrantFitsSender;
    case Guard::kDoneNamesRoom:
      return other == Guard::kWriterGeneration;
    case Guard::kCoverageNeeded:
      return other == Guard::kDoneAfterLanded;
    default:
      return false;
  }
}

class Guards {
 public:
#ifdef KVFERRY_LAB
  Guards() = default;
  explicit Guards(Guard missing) : missing_(missing) {}
  bool has(Guard guard) const { return guard != missing_ && !takes_along(missing_, guard); }

 private:
  Guard missing_ = Guard::kNone;
#else
  // Answered at compile time even in builds that are not optimized, so that coverage counts no
  // branch that the product does not have. (clang has no immediate calls through a member.)
#ifdef __clang__
  static constexpr bool has(Guard) { return true; }
#else
  static consteval bool has(Guard) { return true; }
#endif
#endif
};

}  // namespace kvferry::core
