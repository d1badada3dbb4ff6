#include "bench/transfer/transport_engine.h"

#include <algorithm>

namespace kvferry::bench {

data_plane::TransportConfig transport_config(Role role, const WorkerSetup& setup) {
  data_plane::TransportConfig config;
  config.role = role;
  config.host = setup.host.data();
  if (setup.lanes_per_peer != 0) {
    config.lanes_per_peer = config.shm_lanes = setup.lanes_per_peer;
  }
  if (setup.receive_threads != 0) config.receive_threads = setup.receive_threads;
  if (setup.write_timeout_ms != 0) config.write_timeout_ms = setup.write_timeout_ms;
  config.page_digests = setup.page_digests != 0;
  return config;
}

data_plane::SessionLink make_link(Role role, SessionEpoch epoch,
                                  std::span<const std::uint8_t, 32> secret, std::string_view blob,
                                  std::span<const Region> peer_regions) {
  data_plane::SessionLink link;
  link.epoch = epoch;
  link.local_role = role;
  std::copy(secret.begin(), secret.end(), link.secret.begin());
  link.peer_blob.assign(blob.begin(), blob.end());
  for (const Region& region : peer_regions) {
    link.peer_item_bytes.push_back(region.item_bytes);
    link.peer_item_counts.push_back(region.item_count);
  }
  return link;
}

}  // namespace kvferry::bench
