#include "runtime/key_directory.h"

#include <algorithm>
#include <iterator>

namespace kvferry::runtime {

bool KeyDirectory::is_allowed(const std::string& key, Instant now) const {
  std::lock_guard lock(mutex_);
  const auto found = keys_.find(key);
  return found != keys_.end() &&
         std::any_of(found->second.begin(), found->second.end(), [&](const auto& listing) {
           return !listing.second || now - *listing.second < keep_;
         });
}

void KeyDirectory::update(const std::string& registry, const std::vector<std::string>& keys,
                          Instant now) {
  std::lock_guard lock(mutex_);
  for (auto& [key, listings] : keys_) {
    const auto listing = listings.find(registry);
    if (listing != listings.end() && !listing->second) {
      listing->second = now;
    }
  }
  for (const std::string& key : keys) {
    keys_[key][registry] = std::nullopt;
  }
  for (auto entry = keys_.begin(); entry != keys_.end();) {
    std::erase_if(entry->second, [&](const auto& listing) {
      return listing.second && now - *listing.second >= keep_;
    });
    entry = entry->second.empty() ? keys_.erase(entry) : std::next(entry);
  }
}

std::size_t KeyDirectory::size() const {
  std::lock_guard lock(mutex_);
  return keys_.size();
}

}  // namespace kvferry::runtime
