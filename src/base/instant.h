// Monotonic time as a value. Who makes one decides what it means: the driver takes it from the
// system's monotonic clock (base/clock.h), the simulator from its event queue. Never crosses the
// wire.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>

namespace kvferry {

using Duration = std::chrono::nanoseconds;
using std::chrono::milliseconds;

class Instant {
 public:
  constexpr Instant() = default;
  constexpr explicit Instant(Duration since_start) : since_start_(since_start) {}

  static constexpr Instant max() { return Instant(Duration::max()); }
  constexpr Duration since_start() const { return since_start_; }

  friend constexpr auto operator<=>(Instant, Instant) = default;
  friend constexpr Instant operator+(Instant at, Duration by) {
    return Instant(at.since_start_ + by);
  }
  friend constexpr Duration operator-(Instant later, Instant earlier) {
    return later.since_start_ - earlier.since_start_;
  }

 private:
  Duration since_start_{0};
};

}  // namespace kvferry
