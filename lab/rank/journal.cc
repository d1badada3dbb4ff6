#include "lab/rank/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace kvferry::lab {

Result<Journal> Journal::open(const std::string& path) {
  if (path.empty()) return Journal(-1);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("journal {}: {}", path, std::strerror(errno)));
  }
  return Journal(fd);
}

Journal::Journal(Journal&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
}

router::JsonObject Journal::line(std::string_view at) {
  router::JsonObject line;
  line.integer("ns", monotonic_now().since_start().count()).text("at", at);
  return line;
}

void Journal::append(const router::JsonObject& line) noexcept {
  if (fd_ < 0) return;
  const std::string text = line.str() + "\n";
  [[maybe_unused]] const ssize_t written = ::write(fd_, text.data(), text.size());
}

}  // namespace kvferry::lab
