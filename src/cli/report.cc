#include "cli/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/command.h"

namespace kvferry::cli {

std::string Report::str() const {
  return router::JsonObject()
      .text("command", command)
      .text("version", version())
      .boolean("ok", ok)
      .raw("summary", summary.str())
      .raw("rows", router::json_array(rows))
      .str();
}

Status Report::write(const std::string& path) const {
  const std::string text = str() + "\n";
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return {};
  }
  const auto failed = [&] {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("option --json: {}: {}", path, std::strerror(errno)));
  };
  // Devices and pipes are written as they are.
  std::error_code ignored;
  const bool is_file =
      !std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored);
  const std::string part = is_file ? path + ".part" : path;
  std::FILE* file = std::fopen(part.c_str(), "w");
  if (file == nullptr) return failed();
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!closed || !written || (is_file && std::rename(part.c_str(), path.c_str()) != 0)) {
    const auto failure = failed();
    if (is_file) std::remove(part.c_str());
    return failure;
  }
  return {};
}

}  // namespace kvferry::cli
