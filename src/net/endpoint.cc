#include "net/endpoint.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <charconv>

namespace kvferry::net {
namespace {

constexpr std::size_t kMaxHostBytes = 253;  // longest DNS name

// Only what occurs in names and literals: the text is later pasted into a URL-like address.
bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_' || c == '%' || c == ':';
}

bool is_literal(int family, std::string_view host) {
  unsigned char address[sizeof(in6_addr)];
  return host.size() <= kMaxHostBytes && inet_pton(family, std::string(host).c_str(), address) == 1;
}

}  // namespace

std::optional<Endpoint> parse_endpoint(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) {
    return std::nullopt;
  }
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  host = bare_host(host);
  if (host.empty() || host.size() > kMaxHostBytes || digits.empty()) {
    return std::nullopt;
  }
  // A bare IPv6 literal is refused: its last group would be taken for the port.
  if (!bracketed && host.find(':') != std::string_view::npos) {
    return std::nullopt;
  }
  for (const char c : host) {
    if (!is_host_character(c)) {
      return std::nullopt;
    }
  }
  Endpoint endpoint;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, endpoint.port);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return std::nullopt;
  }
  endpoint.host = host;
  return endpoint;
}

std::string format_endpoint(std::string_view host, std::uint16_t port) {
  host = bare_host(host);
  if (host.find(':') != std::string_view::npos) {
    return fmt::format("[{}]:{}", host, port);
  }
  return fmt::format("{}:{}", host, port);
}

std::string_view bare_host(std::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

bool is_ipv4_literal(std::string_view host) { return is_literal(AF_INET, host); }
bool is_ipv6_literal(std::string_view host) { return is_literal(AF_INET6, host); }

}  // namespace kvferry::net
