#include "base/clock.h"

namespace kvferry {

Instant monotonic_now() {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace kvferry
