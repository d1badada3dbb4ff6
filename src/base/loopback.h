// Which hosts are this machine for certain: what may go unprotected is decided by it.
#pragma once

#include <string_view>

namespace kvferry {

// localhost, an IPv4 literal in 127.0.0.0/8 or ::1, with or without brackets. Other names are not
// resolved and count as foreign, 127.example.org too.
bool is_loopback_host(std::string_view host);

}  // namespace kvferry
