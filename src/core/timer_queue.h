// Deadlines by key. Setting a key again replaces its deadline, so a late expiry of an old one can't
// be seen (no generations needed: the queue is single-threaded and is asked, never called back).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/instant.h"
#include "core/guards.h"

namespace kvferry::core {

template <typename Key>
class TimerQueue {
 public:
  explicit TimerQueue(Guards guards = {}) : guards_(guards) {}

  void set(const Key& key, Instant at) {
    cancel(key);
    by_key_.emplace(key, at);
    by_time_.emplace(at, key);
  }

  void cancel(const Key& key) {
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      if (guards_.has(Guard::kTimerCancelled)) {
        by_time_.erase({found->second, key});
      }
      by_key_.erase(found);
    }
  }

  bool is_set(const Key& key) const { return by_key_.contains(key); }

  // Instant::max() when nothing is set.
  Instant next() const { return by_time_.empty() ? Instant::max() : by_time_.begin()->first; }

  // Removes and returns the earliest key that is due.
  std::optional<Key> pop_due(Instant now) {
    if (by_time_.empty() || by_time_.begin()->first > now) {
      return std::nullopt;
    }
    const Key key = by_time_.begin()->second;
    by_key_.erase(key);
    by_time_.erase(by_time_.begin());
    return key;
  }

  std::size_t size() const { return by_key_.size(); }

 private:
  Guards guards_;
  std::map<Key, Instant> by_key_;
  std::set<std::pair<Instant, Key>> by_time_;
};

}  // namespace kvferry::core
