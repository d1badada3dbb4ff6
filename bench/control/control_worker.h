// One process of `kvferry bench control`: one sends frames and counts what comes back, the other
// sends back what comes. It is this program again, with its channels on the descriptors that
// worker.h names.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/instant.h"
#include "bench/transfer/measurement.h"

namespace kvferry::bench {

inline constexpr std::string_view kPingSideName = "control-ping";
inline constexpr std::string_view kEchoSideName = "control-echo";

// A turn of one engine; its name is the message's text.
struct PingOrder {
  std::uint32_t bytes = 64;
  std::uint32_t window = 1;  // frames under way at one time
  Duration duration{};

  Numbers numbers() const { return {bytes, window, static_cast<std::uint64_t>(duration.count())}; }
  static PingOrder from(const Numbers& n) {
    return {static_cast<std::uint32_t>(n[0]), static_cast<std::uint32_t>(n[1]),
            Duration(static_cast<std::int64_t>(n[2]))};
  }
};

struct PingResult {
  std::uint64_t round_trips = 0;
  Duration duration{};
  Duration p50{};
  Duration p99{};
  Duration cpu{};  // of the process; of the echo side, too, once both are known

  Numbers numbers() const {
    const auto count = [](Duration value) { return static_cast<std::uint64_t>(value.count()); };
    return {round_trips, count(duration), count(p50), count(p99), count(cpu)};
  }
  static PingResult from(const Numbers& n) {
    const auto time = [&](std::size_t i) { return Duration(static_cast<std::int64_t>(n[i])); };
    return {n[0], time(1), time(2), time(3), time(4)};
  }
};

// Returns the exit code, when the controller has ended it or is gone.
int run_control_worker(std::string_view side);

}  // namespace kvferry::bench
