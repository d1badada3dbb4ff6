#include "lab/regressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

#include "lab/seeds.h"

namespace kvferry::lab {
namespace {

constexpr std::string_view kBlank = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::string_view next_word(std::string_view& text) {
  text = trimmed(text);
  const std::size_t end = std::min(text.find_first_of(kBlank), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

auto misread(std::string_view what) {
  return fail(FailureCode::kInvalidArgument, std::string(what));
}

Status apply_option(std::string_view name, std::string_view value, sim::RunOptions& options) {
  if (name == "--rooms") {
    std::uint32_t rooms = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, rooms);
    if (error != std::errc{} || stop != end || rooms == 0) {
      return misread(fmt::format("--rooms: '{}' is no number of rooms", value));
    }
    options.rooms = rooms;
    return {};
  }
  if (name == "--faults") {
    const auto faults = sim::faults_from_list(value);
    if (!faults) return misread(fmt::format("--faults: {}", faults.error().what));
    options.faults = *faults;
    return {};
  }
  return misread(fmt::format("'{}' is neither --rooms nor --faults", name));
}

Result<Regression> parse_line(std::string_view text, std::string_view sentence) {
  Regression out;
  out.sentence = std::string(sentence);
  const auto seed = parse_seeds(next_word(text));
  if (!seed) return misread(seed.error().what);
  out.options.seed = seed->first();
  while (!trimmed(text).empty()) {
    const std::string_view name = next_word(text);
    const std::string_view value = next_word(text);
    if (const Status status = apply_option(name, value, out.options); !status) {
      return misread(status.error().what);
    }
  }
  return out;
}

}  // namespace

Result<std::vector<Regression>> parse_regressions(std::string_view text) {
  std::vector<Regression> out;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view whole = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (whole.empty() || whole.starts_with('#')) continue;
    const std::size_t mark = whole.find('#');
    const std::string_view sentence =
        mark == std::string_view::npos ? "" : trimmed(whole.substr(mark + 1));
    if (sentence.empty()) {
      return misread(fmt::format("line {}: the sentence is missing: # what was wrong", line));
    }
    auto parsed = parse_line(whole.substr(0, mark), sentence);
    if (!parsed) return misread(fmt::format("line {}: {}", line, parsed.error().what));
    parsed->line = line;
    out.push_back(*std::move(parsed));
  }
  return out;
}

Result<std::vector<Regression>> read_regressions(const std::string& path) {
  std::ifstream file(path);
  if (!file) return misread(fmt::format("{} can't be read", path));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto parsed = parse_regressions(text);
  if (!parsed) return misread(fmt::format("{}: {}", path, parsed.error().what));
  return parsed;
}

}  // namespace kvferry::lab
