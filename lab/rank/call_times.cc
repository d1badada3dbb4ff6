#include "lab/rank/call_times.h"

#include <algorithm>

namespace kvferry::lab {
namespace {

constexpr std::uint32_t kSlowUs = 5'000;

double milliseconds_of(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

Instant CallTimes::begin(const char* name) {
  const Instant now = monotonic_now();
  running_.store(name, std::memory_order_relaxed);
  running_since_ns_.store(now.since_start().count(), std::memory_order_release);
  return now;
}

void CallTimes::end(const char* name, Instant began) {
  const Duration took = monotonic_now() - began;
  running_since_ns_.store(0, std::memory_order_release);
  const auto us = static_cast<std::uint32_t>(took / std::chrono::microseconds(1));
  {
    std::lock_guard lock(mutex_);
    microseconds_.push_back(us);
    if (us > longest_us_) {
      longest_us_ = us;
      longest_ = name;
    }
  }
  if (us >= kSlowUs) journal_.append(Journal::line("call").text("name", name).integer("us", us));
}

CallFigures CallTimes::figures() const {
  CallFigures figures;
  const std::int64_t since = running_since_ns_.load(std::memory_order_acquire);
  if (since != 0) {
    figures.running = running_.load(std::memory_order_relaxed);
    figures.running_ms = milliseconds_of(monotonic_now() - Instant(Duration(since)));
  }
  std::vector<std::uint32_t> sorted;
  {
    std::lock_guard lock(mutex_);
    sorted = microseconds_;
    figures.slowest = longest_;
  }
  figures.calls = sorted.size();
  if (sorted.empty()) return figures;
  const std::size_t rank = sorted.size() - 1 - sorted.size() / 1'000;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(rank),
                   sorted.end());
  figures.p999_ms = sorted[rank] / 1'000.0;
  figures.max_ms = *std::max_element(sorted.begin(), sorted.end()) / 1'000.0;
  return figures;
}

void CallTimes::restart() {
  std::lock_guard lock(mutex_);
  microseconds_.clear();
  longest_us_ = 0;
  longest_ = "";
}

}  // namespace kvferry::lab
