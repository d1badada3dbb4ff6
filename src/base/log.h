// Logging through spdlog behind a plain header. Text for people on stderr, or JSON lines for
// machines; every repeated line is limited in rate per call site (RateLimit).
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/instant.h"

namespace kvferry::log {

enum class Level : std::uint8_t { kDebug, kInfo, kWarning, kError, kOff };
enum class Format : std::uint8_t { kText, kJson };

// Once, from main, before any thread is started. name is shown in each line.
void configure(std::string_view name, Level level, Format format);
bool enabled(Level level);
// request: request id or room, empty when the line belongs to none.
void write(Level level, std::string_view text, std::string_view request = {});

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) {
    write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning)) {
    write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) {
    write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) {
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}

// Lets one line per interval pass and counts the others. One per call site or reason, not shared
// between threads.
class RateLimit {
 public:
  explicit RateLimit(Duration interval = std::chrono::seconds(1)) : interval_(interval) {}
  // Whether the line may be written now; suppressed() is then the count since the last one.
  bool allow(Instant now);
  std::uint64_t suppressed() const { return suppressed_; }

 private:
  Duration interval_;
  Instant next_{};
  std::uint64_t pending_ = 0;
  std::uint64_t suppressed_ = 0;
};

}  // namespace kvferry::log
