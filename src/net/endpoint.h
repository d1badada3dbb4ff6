// "host:port" as text and in parts, shared by the control link and HTTP. Peer input: parsing never
// throws and resolves nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/loopback.h"

namespace kvferry::net {

struct Endpoint {
  std::string host;  // an IPv6 literal stands here without its brackets
  std::uint16_t port = 0;
};

// Accepts name:port, IPv4:port and [IPv6]:port. The port may be 0, the host may not be empty.
std::optional<Endpoint> parse_endpoint(std::string_view text);
// Puts brackets around a host that has a colon.
std::string format_endpoint(std::string_view host, std::uint16_t port);
// host without the brackets of an IPv6 literal.
std::string_view bare_host(std::string_view host);

bool is_ipv4_literal(std::string_view host);
bool is_ipv6_literal(std::string_view host);
using kvferry::is_loopback_host;

}  // namespace kvferry::net
