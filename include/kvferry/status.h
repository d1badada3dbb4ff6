// Operating errors as values. A Failure says what happened, where, to whom, and which HTTP class a
// server should turn it into; the same first cause is shown on every rank of a room (rule 17).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "kvferry/ids.h"

namespace kvferry {

// Closed set. The number crosses the wire; never renumber, only append.
enum class FailureCode : std::uint16_t {
  kUnspecified = 0,  // a code of a newer peer that this version does not know
  // The caller's doing.
  kAborted = 1,          // abort() was called on this or on another rank
  kInvalidArgument = 2,  // an argument or option out of range; the text names it
  kDuplicateRoom = 3,    // room and binding are still open here
  kGrantTooLarge = 4,    // page list over the limit of one control message
  kWrongState = 5,       // the call does not fit the room's state
  // Finding and keeping peers.
  kBootstrapFailed = 10,      // bootstrap server unreachable or answered nonsense
  kPrefillUnknown = 11,       // the registry has no such prefill instance or rank
  kPeerUnreachable = 12,      // no session within the deadline
  kPeerLost = 13,             // session ended: connection gone past its grace, or silence
  kPeerRestarted = 14,        // another incarnation answers at the peer's endpoint
  kLayoutMismatch = 15,       // text names the field and both values
  kNumericsMismatch = 16,     // as above, only when identity is required
  kSessionRefused = 17,       // version, role or authentication
  kEngineEpochMismatch = 18,  // ranks of two launches of an engine were mixed
  // Transfer.
  kRoomTimeout = 20,   // the room's deadline passed; text names the state it was in
  kWriteRefused = 21,  // the target refused a write
  kWriteTorn = 22,     // some bytes of a write landed and no more will
  kWriteUnknown = 23,  // a write's outcome is not known by its deadline
  kDoneMismatch = 24,  // a Done whose counts differ from what was granted or landed
  kAuxInvalid = 25,    // aux length, CRC, room, binding or token
  kRoomUnknown = 26,   // a grant whose room was not opened here in time
  kOutsideGrant = 27,  // a landing or send outside the granted pages
  // Limits of this process (never reported as a dead peer).
  kQuarantineFull = 30,
  kTableFull = 31,
  kQueueFull = 32,
  kShuttingDown = 33,
  kControlThreadDead = 34,
  kFenceOverdue = 35,
  kOperatingSystem = 36,  // a system call failed; text has the call and errno's words
  kMalformed = 37,        // peer input that could not be parsed
  kUnauthorized = 38,
  kConflict = 39,  // registry: rank has another owner, or a superseded incarnation
};

// Where the cause lies, seen from who reports it first.
enum class FailureWhere : std::uint8_t { kLocal = 0, kPath = 1, kPeer = 2 };

std::string_view to_string(FailureCode code);
std::string_view to_string(FailureWhere where);

// HTTP code that a server answers for this failure. Routers' circuit breakers count 5xx, so a
// caller's mistake is 4xx and an abort by the client is 499 and counts against nobody (rule 18).
int http_status(FailureCode code);

struct Failure {
  FailureCode code = FailureCode::kUnspecified;
  FailureWhere where = FailureWhere::kLocal;
  std::string what;        // one sentence, no newline
  std::string peer;        // endpoint or name of the peer concerned, empty when there is none
  std::int32_t rank = -1;  // global rank that reported the first cause, -1 when unknown

  friend bool operator==(const Failure&, const Failure&) = default;
};

// "code at where (peer P, rank R): what".
std::string to_string(const Failure& failure);

template <typename T>
using Result = tl::expected<T, Failure>;
using Status = Result<void>;

inline tl::unexpected<Failure> fail(FailureCode code, std::string what,
                                    FailureWhere where = FailureWhere::kLocal,
                                    std::string peer = {}) {
  return tl::unexpected<Failure>(Failure{code, where, std::move(what), std::move(peer), -1});
}

}  // namespace kvferry
