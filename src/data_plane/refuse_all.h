// For transports that are a target only: nothing that is posted to them is sent.
#pragma once

#include <span>
#include <vector>

#include "data_plane/transport.h"

namespace kvferry::data_plane {

inline void refuse_all(SessionEpoch session, std::span<const layout::Write> writes,
                       CompletionSink& sink) {
  std::vector<WriteCompletion> refused;
  refused.reserve(writes.size());
  for (const layout::Write& write : writes) {
    refused.push_back({session, write.ticket, layout::WriteOutcome::kRefused, false});
  }
  sink.writes_completed(refused);
}

}  // namespace kvferry::data_plane
