#include "dialect/sglang/nixl_target.h"

#include "data_plane/host_regions.h"

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
  std::vector<data_plane::WriteCompletion> refused;
  refused.reserve(writes.size());
  for (const layout::Write& write : writes) {
    refused.push_back({session, write.ticket, layout::WriteOutcome::kRefused, false});
  }
  sink_.writes_completed(refused);
}

}  // namespace kvferry::sglang
