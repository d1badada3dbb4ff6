#include "data_plane/shm/shm_door.h"

#include <unistd.h>

#include <cerrno>

#include "data_plane/shm/host.h"
#include "data_plane/shm/shm_target_lane.h"

namespace kvferry::data_plane::shm {

Result<std::unique_ptr<LaneDoor>> ShmDoor::open(const TransportConfig& config) {
  auto folder =
      SocketFolder::make(config.shm_folder.empty() ? default_folder() : config.shm_folder);
  if (!folder) return tl::unexpected(folder.error());
  auto listener = listen_unix(folder->path());
  if (!listener) return tl::unexpected(listener.error());
  return std::unique_ptr<LaneDoor>(new ShmDoor(std::move(*folder), std::move(*listener)));
}

LaneDoor::Arrival ShmDoor::accept() {
  Arrival arrival;
  auto accepted = listener_.accept();
  if (!accepted || !accepted->has_value()) {
    if (accepted) errno = EAGAIN;
    return arrival;
  }
  arrival.fd = std::move(**accepted);
  const auto peer = peer_credentials(arrival.fd.get());
  arrival.is_welcome = peer && peer->uid == ::geteuid();
  if (peer) arrival.peer = "process " + std::to_string(peer->pid);
  return arrival;
}

std::unique_ptr<TargetLane> ShmDoor::make_lane(TargetLaneParts&& parts) const {
  return std::make_unique<ShmTargetLane>(std::move(parts));
}

void ShmDoor::describe(TargetBlob& blob) const {
  blob.unix_path = listener_.path();
  blob.boot = boot_id();
}

}  // namespace kvferry::data_plane::shm
