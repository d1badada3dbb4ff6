#include "kvferry/ids.h"

#include <fmt/format.h>

namespace kvferry {
namespace {

constexpr std::size_t kHexDigits = 32;

std::optional<std::uint64_t> parse_half(std::string_view digits) {
  std::uint64_t value = 0;
  for (const char digit : digits) {
    std::uint64_t nibble = 0;
    if (digit >= '0' && digit <= '9') {
      nibble = static_cast<std::uint64_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      nibble = static_cast<std::uint64_t>(digit - 'a') + 10;
    } else if (digit >= 'A' && digit <= 'F') {
      nibble = static_cast<std::uint64_t>(digit - 'A') + 10;
    } else {
      return std::nullopt;
    }
    value = (value << 4) | nibble;
  }
  return value;
}

}  // namespace

template <typename Tag>
std::string Id128<Tag>::to_hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

template <typename Tag>
std::optional<Id128<Tag>> Id128<Tag>::from_hex(std::string_view text) {
  if (text.size() != kHexDigits) {
    return std::nullopt;
  }
  const auto first = parse_half(text.substr(0, kHexDigits / 2));
  const auto second = parse_half(text.substr(kHexDigits / 2));
  if (!first || !second) {
    return std::nullopt;
  }
  return Id128{*first, *second};
}

template struct Id128<BindingTag>;
template struct Id128<IncarnationTag>;

}  // namespace kvferry
