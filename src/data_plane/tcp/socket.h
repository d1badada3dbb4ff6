// The few socket calls that lanes need, with their failures as text.
#pragma once

#include <cstdint>
#include <string>

#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::data_plane::tcp {

struct Listener {
  Fd fd;
  std::string host;  // numeric, as bound
  std::uint16_t port = 0;
  bool is_wildcard = false;
};

// host may be a name; it is resolved here, which may wait for the resolver.
Result<Listener> listen_on(const std::string& host, std::uint16_t port);
// The numeric form of a host name or address.
Result<std::string> numeric_host(const std::string& host);
// Starts to connect to a numeric address; writable when it is done.
Result<Fd> start_connect(const std::string& host, std::uint16_t port);
// What became of a connect that was started, empty when it succeeded.
std::string connect_error(int fd);
void set_lane_options(int fd, std::uint32_t user_timeout_ms);

}  // namespace kvferry::data_plane::tcp
