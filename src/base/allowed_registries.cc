#include "base/allowed_registries.h"

#include <algorithm>

namespace kvferry {
namespace {

constexpr std::string_view kAnyHost = "*";

struct HostPort {
  std::string_view host;
  std::string_view port;  // with its colon
};

HostPort split(std::string_view address) {
  const std::size_t colon = std::min(address.rfind(':'), address.size());
  return {address.substr(0, colon), address.substr(colon)};
}

}  // namespace

bool allows_registry(const Options& options, std::string_view address) {
  const std::vector<std::string> on_host = allowed_registries_on(options, split(address).host);
  return std::find(on_host.begin(), on_host.end(), address) != on_host.end();
}

std::vector<std::string> allowed_registries_on(const Options& options, std::string_view host) {
  std::vector<std::string> out;
  if (host.empty() || host == kAnyHost) {
    return out;
  }
  for (const std::string& address : options.bootstrap_addresses) {
    if (split(address).host == host) {
      out.push_back(address);
    }
  }
  for (const std::string& address : options.bootstrap_allow) {
    const HostPort allowed = split(address);
    if (allowed.host == host || allowed.host == kAnyHost) {
      out.push_back(std::string(host).append(allowed.port));
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace kvferry
