// The closed set of failure codes as one table: name and HTTP class of each. Kept apart from
// status.h because the codec needs to know whether a number from a peer belongs to the set.
#pragma once

#include <array>
#include <string_view>

#include "kvferry/status.h"

namespace kvferry {

struct FailureCodeRow {
  FailureCode code;
  std::string_view name;
  int http;
};

// 499 and 4xx: the caller's doing, nobody's health. 502: a peer died under the request. 503: try
// elsewhere or later. 504: a deadline passed. 500: data or software is wrong.
inline constexpr std::array kFailureCodes{
    FailureCodeRow{FailureCode::kUnspecified, "unspecified", 500},
    FailureCodeRow{FailureCode::kAborted, "aborted", 499},
    FailureCodeRow{FailureCode::kInvalidArgument, "invalid-argument", 400},
    FailureCodeRow{FailureCode::kDuplicateRoom, "duplicate-room", 409},
    FailureCodeRow{FailureCode::kGrantTooLarge, "grant-too-large", 400},
    FailureCodeRow{FailureCode::kWrongState, "wrong-state", 500},
    FailureCodeRow{FailureCode::kBootstrapFailed, "bootstrap-failed", 503},
    FailureCodeRow{FailureCode::kPrefillUnknown, "prefill-unknown", 503},
    FailureCodeRow{FailureCode::kPeerUnreachable, "peer-unreachable", 503},
    FailureCodeRow{FailureCode::kPeerLost, "peer-lost", 502},
    FailureCodeRow{FailureCode::kPeerRestarted, "peer-restarted", 502},
    FailureCodeRow{FailureCode::kLayoutMismatch, "layout-mismatch", 503},
    FailureCodeRow{FailureCode::kNumericsMismatch, "numerics-mismatch", 503},
    FailureCodeRow{FailureCode::kSessionRefused, "session-refused", 503},
    FailureCodeRow{FailureCode::kEngineEpochMismatch, "engine-epoch-mismatch", 503},
    FailureCodeRow{FailureCode::kRoomTimeout, "room-timeout", 504},
    FailureCodeRow{FailureCode::kWriteRefused, "write-refused", 500},
    FailureCodeRow{FailureCode::kWriteTorn, "write-torn", 500},
    FailureCodeRow{FailureCode::kWriteUnknown, "write-unknown", 504},
    FailureCodeRow{FailureCode::kDoneMismatch, "done-mismatch", 500},
    FailureCodeRow{FailureCode::kAuxInvalid, "aux-invalid", 500},
    FailureCodeRow{FailureCode::kRoomUnknown, "room-unknown", 504},
    FailureCodeRow{FailureCode::kOutsideGrant, "outside-grant", 500},
    FailureCodeRow{FailureCode::kQuarantineFull, "quarantine-full", 503},
    FailureCodeRow{FailureCode::kTableFull, "table-full", 503},
    FailureCodeRow{FailureCode::kQueueFull, "queue-full", 503},
    FailureCodeRow{FailureCode::kShuttingDown, "shutting-down", 503},
    FailureCodeRow{FailureCode::kControlThreadDead, "control-thread-dead", 503},
    FailureCodeRow{FailureCode::kFenceOverdue, "fence-overdue", 503},
    FailureCodeRow{FailureCode::kOperatingSystem, "operating-system", 500},
    FailureCodeRow{FailureCode::kMalformed, "malformed", 500},
    FailureCodeRow{FailureCode::kUnauthorized, "unauthorized", 401},
    FailureCodeRow{FailureCode::kConflict, "conflict", 409},
};

// A number outside the set reads as kUnspecified's row.
constexpr const FailureCodeRow& failure_code_row(FailureCode code) {
  for (const FailureCodeRow& row : kFailureCodes) {
    if (row.code == code) {
      return row;
    }
  }
  return kFailureCodes[0];
}

}  // namespace kvferry
