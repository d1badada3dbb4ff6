#include "base/loopback.h"

#include <charconv>

namespace kvferry {
namespace {

// Four decimal numbers without leading zeros, as inet_pton takes them.
bool is_ipv4_literal(std::string_view host) {
  const char* at = host.data();
  const char* const end = at + host.size();
  for (int part = 0; part < 4; ++part) {
    if (part > 0) {
      if (at == end || *at != '.') {
        return false;
      }
      ++at;
    }
    unsigned value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value > 255 || (*at == '0' && stop - at > 1)) {
      return false;
    }
    at = stop;
  }
  return at == end;
}

}  // namespace

bool is_loopback_host(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         (host.starts_with("127.") && is_ipv4_literal(host));
}

}  // namespace kvferry
