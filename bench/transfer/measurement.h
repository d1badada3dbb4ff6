// One measured run, seen from the target: bytes that landed between two instants, after a lead-in
// that is not counted.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/instant.h"

namespace kvferry::bench {

using Numbers = std::array<std::uint64_t, 12>;  // of a message between the bench's processes

enum class RunMode : std::uint64_t {
  kPlain,          // each grant is filled, then fenced
  kFencing,        // one grant in eight is fenced while its writes come
  kFenceCheck,     // as kFencing, and every byte of those pages is watched
  kSourceLost,     // somebody kills or stops the source in the middle
  kTargetLost,     // somebody kills or stops the target in the middle
  kBesideStopped,  // as kPlain, while the source also posts to a target that is stopped
};

struct RunOrder {
  Duration duration{};           // of the measured part; 0 for a run that only warms up
  std::uint64_t warm_bytes = 0;  // land before the measured part begins
  std::uint32_t batch = 0;       // writes in one post(), 0: a whole grant
  RunMode mode = RunMode::kPlain;
  std::uint64_t releases = 0;  // fences under stale writes before the measured part may end

  Numbers numbers() const {
    return {static_cast<std::uint64_t>(duration.count()), warm_bytes, batch,
            static_cast<std::uint64_t>(mode), releases};
  }
  static RunOrder from(const Numbers& numbers) {
    return {Duration(numbers[0]), numbers[1], static_cast<std::uint32_t>(numbers[2]),
            static_cast<RunMode>(numbers[3]), numbers[4]};
  }
};

// What the target saw.
struct RunResult {
  std::uint64_t bytes = 0;
  Duration duration{};
  std::uint64_t checked_pages = 0;  // whose content was compared, after the measured part
  std::uint64_t total_bytes = 0;    // until the measured part ended, the lead-in too
  // Of the grants that were fenced while their writes came.
  std::uint64_t releases = 0;
  std::uint64_t late_pages = 0;  // that changed after their release
  Duration release_p50{};
  Duration release_p99{};
  Duration release_max{};
  // Of the process, where a case asks for it.
  Duration cpu{};                   // used in the measured part
  std::uint64_t session_bytes = 0;  // memory of all sessions together
  Duration known_at{};              // lost: on the system's monotonic clock

  Numbers numbers() const {
    const auto count = [](Duration value) { return static_cast<std::uint64_t>(value.count()); };
    return {bytes,         count(duration),    checked_pages,      total_bytes,        releases,
            late_pages,    count(release_p50), count(release_p99), count(release_max), count(cpu),
            session_bytes, count(known_at)};
  }
  static RunResult from(const Numbers& n) {
    return {n[0],           Duration(n[1]), n[2],           n[3],           n[4],  n[5],
            Duration(n[6]), Duration(n[7]), Duration(n[8]), Duration(n[9]), n[10], Duration(n[11])};
  }
  // 1e9 bytes a second.
  double gbps() const {
    return duration.count() > 0 ? static_cast<double>(bytes) / static_cast<double>(duration.count())
                                : 0.0;
  }
};

// How the source's writes of a run ended.
struct PostResult {
  std::uint64_t landed = 0;
  std::uint64_t refused = 0;
  std::uint64_t unknown = 0;
  Duration cpu{};  // as in RunResult
  std::uint64_t session_bytes = 0;
  // Lost: when the last write was posted and when all had their outcome, on the system's monotonic
  // clock, and the longest post() of one write.
  Duration posted_at{};
  Duration known_at{};
  Duration post_max{};
  // Beside a stopped target: refused, unknown and post_max are those of the writes to it.

  Numbers numbers() const {
    const auto count = [](Duration value) { return static_cast<std::uint64_t>(value.count()); };
    return {landed,        refused,          unknown,         count(cpu),
            session_bytes, count(posted_at), count(known_at), count(post_max)};
  }
  static PostResult from(const Numbers& n) {
    return {n[0], n[1], n[2], Duration(n[3]), n[4], Duration(n[5]), Duration(n[6]), Duration(n[7])};
  }
};

class Measurement {
 public:
  static constexpr milliseconds kLeadIn{30};

  Measurement(const RunOrder& order, Instant now) : order_(order), begin_(now + kLeadIn) {}

  // landed, releases: since the run began. False when the measured part is over.
  bool goes_on(Instant now, std::uint64_t landed, std::uint64_t releases = 0) {
    if (is_over_) return false;
    if (!is_measuring_) {
      if (now < begin_ || landed < order_.warm_bytes) return true;
      is_measuring_ = true;
      begin_ = now;
      bytes_at_begin_ = landed;
    }
    if (now - begin_ < order_.duration || releases < order_.releases) return true;
    result_.bytes = landed - bytes_at_begin_;
    result_.duration = now - begin_;
    result_.total_bytes = landed;
    is_over_ = true;
    return false;
  }
  // When to ask next, for who has nothing else to wake it.
  Instant next_look(Instant now) const {
    if (is_measuring_ && begin_ + order_.duration > now) return begin_ + order_.duration;
    return std::max(begin_, now + milliseconds(5));
  }
  const RunResult& result() const { return result_; }

 private:
  RunOrder order_;
  Instant begin_;
  bool is_measuring_ = false;
  bool is_over_ = false;
  std::uint64_t bytes_at_begin_ = 0;
  RunResult result_;
};

}  // namespace kvferry::bench
