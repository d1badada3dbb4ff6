#include "data_plane/lanes/target_lane.h"

namespace kvferry::data_plane {

bool TargetLane::ask_owner(std::uint64_t request, std::uint32_t lost_serial,
                           std::span<const std::uint8_t> entries) {
  if (lost_serial == serial_) {
    lose(FailureCode::kMalformed, "a lane asked how it ended itself", FailureWhere::kPeer);
    return false;
  }
  std::vector<ResolveEntry> parsed;
  parsed.reserve(entries.size() / kResolveEntryBytes);
  for (; entries.size() >= kResolveEntryBytes; entries = entries.subspan(kResolveEntryBytes)) {
    parsed.push_back(parse_resolve_entry(entries.first<kResolveEntryBytes>()));
  }
  owner_.on_resolve(*this, lost_serial, request, std::move(parsed));
  return true;
}

}  // namespace kvferry::data_plane
