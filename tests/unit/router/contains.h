// What several tests of the router ask of a text.
#pragma once

#include <string>
#include <string_view>

namespace kvferry::router {

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kvferry::router
