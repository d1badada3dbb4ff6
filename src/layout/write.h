// One posted write, as the core plans it and a transport executes it. Names, never addresses: the
// target looks slot and region up itself (design rule on the data plane, D4).
#pragma once

#include <cstdint>

#include "kvferry/ids.h"

namespace kvferry::layout {

struct Write {
  TicketId ticket;
  GrantSlot slot;
  Generation generation;
  RegionId source_region;
  std::uint64_t source_offset = 0;  // bytes from the start of the source region
  RegionId target_region;
  std::uint32_t target_item = 0;     // page, aux slot or state slot at the target
  std::uint64_t offset_in_item = 0;  // bytes
  std::uint64_t length = 0;          // bytes
  friend bool operator==(const Write&, const Write&) = default;
};

// How a posted write ends (rule 2). kUnknown is followed by "quiet" later, or by a fence.
enum class WriteOutcome : std::uint8_t { kLanded, kRefused, kUnknown };

// At the source: a ticket's one outcome.
struct WriteCompletion {
  SessionEpoch session;
  TicketId ticket;
  WriteOutcome outcome = WriteOutcome::kUnknown;
  bool torn = false;    // of an unknown one: the target says that some of its bytes landed
  bool fenced = false;  // of a refused one: the target says that its grant is over
};

// At the target: bytes of one write landed under the grant that slot and generation name (rule 9).
struct Landing {
  SessionEpoch session;
  GrantSlot slot;
  Generation generation;
  TicketId ticket;
  RegionId region;
  std::uint32_t item = 0;
  std::uint64_t offset_in_item = 0;
  std::uint64_t length = 0;
};

}  // namespace kvferry::layout
