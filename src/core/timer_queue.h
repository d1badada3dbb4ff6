// Deadlines by key. Setting a key again replaces its deadline, so a late expiry of an old one can't
// be seen (no generations needed: the queue is single-threaded and is asked, never called back).
//
// A heap whose entries may be out of date, beside the one true deadline of each key: setting and
// cancelling a deadline, which each room does some ten times, touches no tree.
#pragma once

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "base/instant.h"
#include "core/guards.h"

namespace kvferry::core {

// Key: ordered, for deadlines at the same instant, and hashed by Hash.
template <typename Key, typename Hash = std::hash<Key>>
class TimerQueue {
 public:
  explicit TimerQueue(Guards guards = {}) : guards_(guards) {}

  void set(const Key& key, Instant at) {
    by_key_[key] = at;
    heap_.push_back(Entry{at, key});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    tidy();
  }

  void cancel(const Key& key) {
    if (by_key_.erase(key) > 0) {
      tidy();
    }
  }

  bool is_set(const Key& key) const { return by_key_.contains(key); }

  // Instant::max() when nothing is set.
  Instant next() const { return heap_.empty() ? Instant::max() : heap_.front().at; }

  // Removes and returns the earliest key that is due; of those at one instant the least.
  std::optional<Key> pop_due(Instant now) {
    if (heap_.empty() || heap_.front().at > now) {
      return std::nullopt;
    }
    const Key key = heap_.front().key;
    by_key_.erase(key);
    pop();
    tidy();
    return key;
  }

  std::size_t size() const { return by_key_.size(); }

 private:
  struct Entry {
    Instant at;
    Key key;
    friend auto operator<=>(const Entry&, const Entry&) = default;
  };
  static constexpr std::size_t kSpare = 64;

  bool is_in_force(const Entry& entry) const {
    const auto found = by_key_.find(entry.key);
    return (found != by_key_.end() && found->second == entry.at) ||
           !guards_.has(Guard::kTimerCancelled);
  }
  void pop() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }
  // The first entry is one in force, and most of the others are.
  void tidy() {
    while (!heap_.empty() && !is_in_force(heap_.front())) {
      pop();
    }
    if (heap_.size() > 2 * by_key_.size() + kSpare && guards_.has(Guard::kTimerCancelled)) {
      std::erase_if(heap_, [this](const Entry& entry) { return !is_in_force(entry); });
      std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
  }

  Guards guards_;
  boost::unordered_flat_map<Key, Instant, Hash> by_key_;
  std::vector<Entry> heap_;
};

}  // namespace kvferry::core
