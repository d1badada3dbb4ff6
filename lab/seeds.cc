#include "lab/seeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace kvferry::lab {
namespace {

constexpr std::size_t kShortestHash = 7;
constexpr std::size_t kLongestHash = 40;
constexpr std::size_t kHashDigits = 16;

std::optional<std::uint64_t> number(std::string_view text, int base) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (text.empty() || error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace

Result<SeedSequence> parse_seeds(std::string_view text) {
  if (const auto decimal = number(text, 10)) return SeedSequence(*decimal);
  if (text.starts_with("0x") || text.starts_with("0X")) {
    if (const auto hex = number(text.substr(2), 16)) return SeedSequence(*hex);
  }
  const bool is_hash = text.size() >= kShortestHash && text.size() <= kLongestHash &&
                       std::all_of(text.begin(), text.end(),
                                   [](unsigned char digit) { return std::isxdigit(digit) != 0; });
  if (is_hash) {
    if (const auto hash = number(text.substr(0, kHashDigits), 16)) {
      return SeedSequence(*hash, true);
    }
  }
  return fail(FailureCode::kInvalidArgument,
              fmt::format("'{}' is no seed: a decimal number, 0x and up to 16 hex digits, or a "
                          "commit's hash (7 to 40 hex digits)",
                          text));
}

}  // namespace kvferry::lab
