// Guards of the transports as the simulator models them (sim/fabric): what
// data_plane/receive_gate.h, claim_table.h and a registration give in the product. Missing one
// shows that the schedules and the oracle would notice; that the product's own code has it is shown
// by the conformance suite.
#pragma once

#include <cstdint>

namespace kvferry::sim {

enum class ModelGuard : std::uint8_t {
  kNone,
  kMarkBeforeCheck,     // the mark goes up before the generation is read
  kMarkPerThread,       // not one busy flag that all receiving threads share
  kGenerationChecked,   // the generation is read at all before the copy
  kClaim,               // a range is claimed before it is copied
  kSecondCopyAnswered,  // a ticket's second copy gets the first one's outcome, not "refused"
  kNoMarkWhileWaiting,  // the mark is clear while a writer's next bytes are awaited
  kFenceWaitsForMarks,  // the fence waits for the marks that it found up
  kFenceAfterRestart,   // the end of a process ends what may be written to its memory
  kLandedAfterCopy,     // landed is answered after the copy, not when the frame came
  kExtentChecked,       // a write stays inside its writer's slice
};

}  // namespace kvferry::sim
