#include "dialect/sglang/nixl_target.h"

#include "data_plane/host_regions.h"
#include "data_plane/refuse_all.h"

namespace kvferry::sglang {

Status NixlTarget::register_regions(std::span<const Region> regions) {
  if (auto checked = data_plane::check_host_regions(regions, kName); !checked) {
    return checked;
  }
  return uses_.register_regions(regions, !sessions_.empty());
}

Status NixlTarget::open_session(const data_plane::SessionLink& link) {
  sessions_.insert(link.epoch);
  return {};
}

void NixlTarget::post(SessionEpoch session, std::span<const layout::Write> writes) {
  data_plane::refuse_all(session, writes, sink_);
}

}  // namespace kvferry::sglang
