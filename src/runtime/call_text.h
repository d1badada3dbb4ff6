// A caller's words as they go into a Failure: one line, of limited length.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace kvferry::runtime {

inline std::string one_line(std::string_view text) {
  constexpr std::size_t kMaxBytes = 512;
  std::string line(text.substr(0, kMaxBytes));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return line;
}

}  // namespace kvferry::runtime
