// The TCP listener of a target.
#pragma once

#include "data_plane/lanes/lane_door.h"
#include "data_plane/tcp/socket.h"

namespace kvferry::data_plane::tcp {

class TcpDoor final : public LaneDoor {
 public:
  // Binds config.host and config.port; a wildcard needs advertise_host.
  static Result<std::unique_ptr<LaneDoor>> open(const TransportConfig& config);

  int listener() const override { return listener_.fd.get(); }
  Arrival accept() override;
  std::unique_ptr<TargetLane> make_lane(TargetLaneParts&& parts) const override;
  void describe(TargetBlob& blob) const override;

 private:
  TcpDoor(Listener listener, std::uint32_t lane_timeout_ms)
      : listener_(std::move(listener)), lane_timeout_ms_(lane_timeout_ms) {}

  Listener listener_;
  const std::uint32_t lane_timeout_ms_;
};

}  // namespace kvferry::data_plane::tcp
