#include "data_plane/lanes/target_lane.h"

namespace kvferry::data_plane {

void append_answers(std::vector<std::uint8_t>& out, FrameType type, std::uint64_t sequence,
                    std::span<const WriteResult> results) {
  FrameHeader header;
  header.type = type;
  header.count = static_cast<std::uint16_t>(results.size());
  header.sequence = sequence;
  append_header(out, header);
  for (const WriteResult result : results) out.push_back(static_cast<std::uint8_t>(result));
}

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
