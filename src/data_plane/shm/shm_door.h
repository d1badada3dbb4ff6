// The Unix socket of a target, for sources of the same user on the same host.
#pragma once

#include "data_plane/lanes/lane_door.h"
#include "data_plane/shm/socket_folder.h"
#include "data_plane/shm/unix_socket.h"

namespace kvferry::data_plane::shm {

class ShmDoor final : public LaneDoor {
 public:
  // Listens in a folder of its own within config.shm_folder, or within the user's runtime folder.
  static Result<std::unique_ptr<LaneDoor>> open(const TransportConfig& config);

  int listener() const override { return listener_.fd(); }
  Arrival accept() override;
  std::unique_ptr<TargetLane> make_lane(TargetLaneParts&& parts) const override;
  void describe(TargetBlob& blob) const override;

 private:
  ShmDoor(SocketFolder folder, UnixListener listener)
      : folder_(std::move(folder)), listener_(std::move(listener)) {}

  SocketFolder folder_;  // outlives the socket in it
  UnixListener listener_;
};

}  // namespace kvferry::data_plane::shm
