// The parts of `kvferry bench`, each a command of its own named "bench PART", and what they share.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/settings.h"

namespace kvferry::cli {

const Command& bench_transfer_command();
const Command& bench_handoff_command();
const Command& bench_control_command();

// The line on stderr that says how far it is, when a person looks.
class ProgressLine {
 public:
  ProgressLine() : is_shown_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { show(""); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text) const {
    if (!is_shown_) return;
    fmt::print(stderr, "\r\x1b[K{}", text);
    std::fflush(stderr);
  }

 private:
  const bool is_shown_;
};

// A number of seconds with a fraction.
inline void add_seconds(Settings& settings, std::string name, double& target, std::string help) {
  Setting setting;
  setting.name = std::move(name);
  setting.unit = "s";
  setting.help = help + " (0.05 to 60)";
  setting.get = [&target] { return fmt::format("{}", target); };
  setting.set = [&target](std::string_view value) -> Status {
    double parsed = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, parsed);
    if (error != std::errc{} || stop != end || !(parsed >= 0.05 && parsed <= 60)) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("'{}' is not a number from 0.05 to 60 s", value));
    }
    target = parsed;
    return {};
  };
  settings.add(std::move(setting));
}

}  // namespace kvferry::cli
