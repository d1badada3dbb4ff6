// What happened, in order: a hash of everything (equal seeds give equal hashes), the number of the
// current event, and lines for people when somebody reads them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/instant.h"

namespace kvferry::sim {

enum class LogLevel : std::uint8_t { kNone, kBrief, kFull };

class Trace {
 public:
  explicit Trace(LogLevel level) : level_(level) {}

  // Called once per happening by the simulation's loop.
  void next_event() { ++event_; }
  std::uint64_t event() const { return event_; }

  void mix(std::uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9E3779B97F4A7C15ULL;
    hash_ ^= hash_ >> 32;
  }
  template <typename... Values>
  void mix(std::uint64_t first, std::uint64_t second, Values... rest) {
    mix(first);
    mix(second, static_cast<std::uint64_t>(rest)...);
  }
  std::uint64_t hash() const { return hash_; }

  // Whoever compares the lines with what it expects gets them from here on, instead of stderr.
  using Reader = std::function<void(Instant now, const std::string& line)>;
  void capture(LogLevel level, Reader reader) {
    level_ = level;
    reader_ = std::move(reader);
  }

  bool wants(LogLevel level) const { return level <= level_ && level_ != LogLevel::kNone; }
  // Arguments are formatted only when somebody reads; nothing of a line enters the hash.
  template <typename... Args>
  void line(LogLevel level, Instant now, fmt::format_string<Args...> text, Args&&... args) {
    if (wants(level)) {
      write(now, fmt::format(text, std::forward<Args>(args)...));
    }
  }

 private:
  void write(Instant now, const std::string& text) const;  // stderr: "event time text"

  LogLevel level_;
  Reader reader_;
  std::uint64_t event_ = 0;
  std::uint64_t hash_ = 0xCBF29CE484222325ULL;
};

}  // namespace kvferry::sim
