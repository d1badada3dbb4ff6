// A data plane transport, driven as the runtime drives it: the target opens grants over scattered
// pages, the source posts a write per page, landings fill the grant, the target fences it and
// opens the next one in its slot.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "bench/transfer/engine.h"
#include "data_plane/transport.h"

namespace kvferry::bench {

std::unique_ptr<SourceEngine> make_transport_source(std::string_view name, const WorkerSetup& setup,
                                                    const Pool& pool);
std::unique_ptr<TargetEngine> make_transport_target(std::string_view name, const WorkerSetup& setup,
                                                    const Pool& pool);

// What both ends have in common.
data_plane::TransportConfig transport_config(Role role, const WorkerSetup& setup);
data_plane::SessionLink make_link(Role role, SessionEpoch epoch,
                                  std::span<const std::uint8_t, 32> secret, std::string_view blob,
                                  std::span<const Region> peer_regions);

}  // namespace kvferry::bench
