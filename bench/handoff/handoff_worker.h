// One process of `kvferry bench handoff`: an engine of one side, driven by the controller. It is
// this program again, with its channels on the descriptors that worker.h names.
#pragma once

#include <string_view>

namespace kvferry::bench {

inline constexpr std::string_view kPrefillSideName = "handoff-prefill";
inline constexpr std::string_view kDecodeSideName = "handoff-decode";

// Returns the exit code, when the controller has ended it or is gone.
int run_handoff_worker(std::string_view side);

}  // namespace kvferry::bench
