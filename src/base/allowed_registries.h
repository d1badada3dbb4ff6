// Which registries a request may name (rule 16): those of Options::bootstrap_addresses and of
// bootstrap_allow. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kvferry/options.h"

namespace kvferry {

// address: host:port, IPv6 in brackets.
bool allows_registry(const Options& options, std::string_view address);

// For a request that names a host alone: the allowed host:port on it, sorted, each once. "*:port"
// in bootstrap_allow stands for that port of the host.
std::vector<std::string> allowed_registries_on(const Options& options, std::string_view host);

}  // namespace kvferry
