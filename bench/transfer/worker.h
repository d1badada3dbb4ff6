// The process at one end of the bench. The controller starts two of them from its own program, with
// the channels on fixed descriptors.
#pragma once

#include <string_view>

namespace kvferry::bench {

inline constexpr int kControlFd = 3;  // to the controller
inline constexpr int kPeerFd = 4;     // to the other worker

// side: "source" or "target". Returns the exit code, when the controller has ended it or is gone.
int run_worker(std::string_view side);

}  // namespace kvferry::bench
