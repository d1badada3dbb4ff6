// Short by default, so that the whole suite belongs into make test; long with
// KVFERRY_CONFORMANCE=long, which make check-long sets.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace kvferry::data_plane {

inline bool is_long_run() {
  const char* const length = std::getenv("KVFERRY_CONFORMANCE");
  return length != nullptr && std::string_view(length) == "long";
}

inline std::uint64_t by_length(std::uint64_t short_count, std::uint64_t long_count) {
  return is_long_run() ? long_count : short_count;
}

}  // namespace kvferry::data_plane
