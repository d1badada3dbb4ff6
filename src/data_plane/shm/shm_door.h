// The Unix socket of a target, for sources of the same user on the same host.
#pragma once

#include "data_plane/lanes/lane_door.h"
#include "data_plane/shm/unix_socket.h"

namespace kvferry::data_plane::shm {

class ShmDoor final : public LaneDoor {
 public:
  // Listens in config.shm_folder, or in the user's runtime folder.
  static Result<std::unique_ptr<LaneDoor>> open(const TransportConfig& config);

  int listener() const override { return listener_.fd(); }
  Arrival accept() override;
  std::unique_ptr<TargetLane> make_lane(TargetLaneParts&& parts) const override;
  void describe(TargetBlob& blob) const override;

 private:
  explicit ShmDoor(UnixListener listener) : listener_(std::move(listener)) {}

  UnixListener listener_;
};

}  // namespace kvferry::data_plane::shm
