// The public keys that may connect: those of the ranks that the registries list, of both roles. ZAP
// asks it on the driver's thread while the registry workers fill it on theirs.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/instant.h"

namespace kvferry::runtime {

// Threads: any.
class KeyDirectory {
 public:
  // A key whose row is gone may still connect for so long: a registry that restarted empty must not
  // cut off ranks that live.
  explicit KeyDirectory(Duration keep) : keep_(keep) {}

  bool is_allowed(const std::string& key, Instant now) const;
  // All keys that this registry lists now. A registry that does not answer changes nothing.
  void update(const std::string& registry, const std::vector<std::string>& keys, Instant now);
  std::size_t size() const;

 private:
  // Per registry that lists or listed the key: when it stopped to; empty while it does.
  using Listings = std::map<std::string, std::optional<Instant>, std::less<>>;

  const Duration keep_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Listings> keys_;
};

}  // namespace kvferry::runtime
