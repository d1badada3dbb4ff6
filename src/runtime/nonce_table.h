// Refuses a signed request that comes a second time. Remembers nonces for as long as their time is
// within the tolerance; when the table is full the oldest go, and with them every time up to
// theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace kvferry::runtime {

// Not thread-safe. Times are Unix seconds.
class NonceTable {
 public:
  NonceTable(std::size_t max_nonces, std::int64_t tolerance_s)
      : max_nonces_(max_nonces), tolerance_s_(tolerance_s) {}

  enum class Verdict : std::uint8_t { kFresh, kOutsideTolerance, kReplayed };
  // Remembers a fresh one.
  Verdict check(std::int64_t time, std::string_view nonce, std::int64_t now) {
    while (!seen_.empty() && seen_.begin()->first < now - tolerance_s_) {
      seen_.erase(seen_.begin());
    }
    if (time < now - tolerance_s_ || time > now + tolerance_s_ || time <= forgotten_up_to_) {
      return Verdict::kOutsideTolerance;
    }
    if (!seen_.emplace(time, nonce).second) {
      return Verdict::kReplayed;
    }
    while (seen_.size() > max_nonces_) {
      forgotten_up_to_ = seen_.begin()->first;
      seen_.erase(seen_.begin());
    }
    return Verdict::kFresh;
  }
  std::size_t size() const { return seen_.size(); }

 private:
  const std::size_t max_nonces_;
  const std::int64_t tolerance_s_;
  std::set<std::pair<std::int64_t, std::string>> seen_;
  std::int64_t forgotten_up_to_ = -1;
};

}  // namespace kvferry::runtime
