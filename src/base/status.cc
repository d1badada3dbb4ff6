#include "kvferry/status.h"

#include <fmt/format.h>

#include "base/failure_codes.h"
#include "kvferry/kv_poll.h"

namespace kvferry {

std::string_view to_string(FailureCode code) { return failure_code_row(code).name; }

std::string_view to_string(FailureWhere where) {
  switch (where) {
    case FailureWhere::kLocal:
      return "local";
    case FailureWhere::kPath:
      return "path";
    case FailureWhere::kPeer:
      return "peer";
  }
  return "unknown";
}

std::string_view to_string(KvPoll status) {
  switch (status) {
    case KvPoll::kFailed:
      return "Failed";
    case KvPoll::kBootstrapping:
      return "Bootstrapping";
    case KvPoll::kWaitingForInput:
      return "WaitingForInput";
    case KvPoll::kTransferring:
      return "Transferring";
    case KvPoll::kSuccess:
      return "Success";
  }
  return "unknown";
}

int http_status(FailureCode code) { return failure_code_row(code).http; }

std::string to_string(const Failure& failure) {
  std::string concerned;
  if (!failure.peer.empty()) {
    concerned = fmt::format("peer {}", failure.peer);
  }
  if (failure.rank >= 0) {
    concerned += fmt::format("{}rank {}", concerned.empty() ? "" : ", ", failure.rank);
  }
  if (!concerned.empty()) {
    concerned = " (" + concerned + ")";
  }
  return fmt::format("{} at {}{}: {}", to_string(failure.code), to_string(failure.where), concerned,
                     failure.what);
}

}  // namespace kvferry
