// The same room opened twice at the same moment, from two threads, again and again.
#pragma once

#include <cstdint>

#include "kvferry/kv_manager.h"

namespace kvferry::lab {

struct TwinFigures {
  std::uint64_t pairs = 0;
  std::uint64_t one_refused = 0;  // exactly one of the two, as duplicate-room
  std::uint64_t both_refused = 0;
  std::uint64_t both_open = 0;     // neither was refused within the patience
  std::uint64_t other_causes = 0;  // refused as something else
  double widest_gap_ms = 0;        // between the two calls
};

// Rooms first to first + count - 1; whoever is accepted is aborted before the next. Makes its own
// threads and waits for them; not for the engine's thread.
TwinFigures open_twins(KvManager& manager, std::uint64_t first, std::uint64_t count);

}  // namespace kvferry::lab
