#include "lab/rig/process_figures.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace kvferry::lab {
namespace {

// "Threads:	12" or "VmRSS:	 1234 kB".
std::int64_t number_in(std::string_view line) {
  const std::size_t first = line.find_first_of("0123456789");
  std::int64_t number = -1;
  if (first != std::string_view::npos) {
    std::from_chars(line.data() + first, line.data() + line.size(), number);
  }
  return number;
}

}  // namespace

Result<ProcessFigures> figures_of(pid_t pid) {
  const std::filesystem::path folder = fmt::format("/proc/{}", pid);
  ProcessFigures figures{-1, 0, -1};
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) figures.threads = number_in(line);
    if (line.starts_with("VmRSS:")) figures.resident_kib = number_in(line);
  }
  std::error_code error;
  auto entry = std::filesystem::directory_iterator(folder / "fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    ++figures.descriptors;
  }
  if (error || figures.threads < 0 || figures.resident_kib < 0) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("{} can't be read: is process {} dead, or another user's?",
                            folder.string(), pid));
  }
  return figures;
}

std::vector<Finding> compare(const std::string& process, const ProcessFigures& before,
                             const ProcessFigures& after, std::int64_t growth_kib) {
  std::vector<Finding> findings;
  const auto judge = [&](std::string_view what, std::int64_t was, std::int64_t is,
                         std::int64_t more) {
    if (is <= was + more) return;
    findings.push_back(
        {"I4", fmt::format("{}: {} {} at the start, {} at the end", process, was, what, is)});
  };
  judge("threads", before.threads, after.threads, 0);
  judge("descriptors", before.descriptors, after.descriptors, 0);
  judge("KiB of resident memory", before.resident_kib, after.resident_kib, growth_kib);
  return findings;
}

std::string to_string(const ProcessFigures& figures) {
  return fmt::format("{} threads, {} descriptors, {} KiB", figures.threads, figures.descriptors,
                     figures.resident_kib);
}

}  // namespace kvferry::lab
