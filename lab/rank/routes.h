// Where a rank really dials when it means an endpoint: a relay of the rig instead of the peer.
// Peers keep the names that they gave each other, so a relay can stand between one pair alone.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kvferry::lab {

// Threads: any.
class Routes {
 public:
  void set(std::string endpoint, std::string through) {
    std::lock_guard lock(mutex_);
    through_[std::move(endpoint)] = std::move(through);
  }
  std::string of(const std::string& endpoint) const {
    std::lock_guard lock(mutex_);
    const auto found = through_.find(endpoint);
    return found == through_.end() ? endpoint : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::string> through_;
};

}  // namespace kvferry::lab
