#include "data_plane/factory.h"

#include <string>

#include "data_plane/lane_transport.h"

namespace kvferry::data_plane {

std::vector<std::string_view> transport_names() { return {"auto", "shm", "tcp"}; }

Result<std::unique_ptr<Transport>> make_transport(std::string_view name,
                                                  const TransportConfig& config,
                                                  CompletionSink& sink) {
  if (name == "auto") return make_lane_transport(LaneChoice::kAuto, config, sink);
  if (name == "shm") return make_lane_transport(LaneChoice::kShm, config, sink);
  if (name == "tcp") return make_lane_transport(LaneChoice::kTcp, config, sink);
  std::string known;
  for (const std::string_view other : transport_names()) {
    known += (known.empty() ? "" : ", ") + std::string(other);
  }
  return fail(FailureCode::kInvalidArgument,
              "no transport is named '" + std::string(name) + "'; this build has: " + known);
}

}  // namespace kvferry::data_plane
