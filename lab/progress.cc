#include "lab/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace kvferry::lab {
namespace {

constexpr const char* kClearLine = "\r\x1b[K";
constexpr std::chrono::milliseconds kInterval{200};

}  // namespace

Progress::Progress() : is_shown_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (is_dirty_) fmt::print(stderr, "{}", kClearLine);
}

void Progress::show(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!is_shown_ || now < next_) return;
  next_ = now + kInterval;
  is_dirty_ = true;
  fmt::print(stderr, "{}{}", kClearLine, text);
  std::fflush(stderr);
}

}  // namespace kvferry::lab
