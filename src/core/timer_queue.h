// Deadlines by key. Setting a key again replaces its deadline, so a late expiry of an old one can't
// be seen (no generations needed: the queue is single-threaded and is asked, never called back).
//
// Deadlines of one length are set in the order in which they fall due, and a protocol knows few
// lengths: most entries wait in a line that is only ever appended to and taken from the front, what
// fits into no line goes to a heap. Entries may be out of date beside the one true deadline of
// their key: setting and cancelling, which each room does some ten times, moves nothing.
#pragma once

#include <algorithm>
#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/instant.h"
#include "core/guards.h"

namespace kvferry::core {

// Key: hashed by Hash.
template <typename Key, typename Hash = std::hash<Key>>
class TimerQueue {
 public:
  explicit TimerQueue(Guards guards = {}) : guards_(guards) {}

  void set(const Key& key, Instant at) {
    const Entry entry{at, ++last_set_, key};
    by_key_[key] = entry.set;
    if (Line* line = line_for(at)) {
      line->entries.push_back(entry);
    } else {
      heap_.push_back(entry);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    tidy(key);
  }

  void cancel(const Key& key) {
    if (by_key_.erase(key) > 0) {
      tidy(key);
    }
  }

  bool is_set(const Key& key) const { return by_key_.contains(key); }

  // Instant::max() when nothing is set.
  Instant next() const {
    const Entry* first = earliest().first;
    return first == nullptr ? Instant::max() : first->at;
  }

  // Removes and returns the earliest key that is due; of those at one instant the one that was set
  // first.
  std::optional<Key> pop_due(Instant now) {
    const auto [first, line] = earliest();
    if (first == nullptr || first->at > now) {
      return std::nullopt;
    }
    const Key key = first->key;
    by_key_.erase(key);
    if (line == kLines) {
      pop_heap();
      tidy_heap();
    } else {
      lines_[line].pop();
      tidy(lines_[line]);
    }
    return key;
  }

  std::size_t size() const { return by_key_.size(); }

 private:
  struct Entry {
    Instant at;
    std::uint64_t set = 0;  // counts up over all keys
    Key key;
    bool operator>(const Entry& other) const {
      return at != other.at ? at > other.at : set > other.set;
    }
  };
  // Sorted; what lies before first was taken.
  struct Line {
    std::vector<Entry> entries;
    std::size_t first = 0;

    bool empty() const { return first == entries.size(); }
    std::size_t size() const { return entries.size() - first; }
    const Entry& front() const { return entries[first]; }
    void pop() {
      if (++first * 2 > entries.size()) {
        entries.erase(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(first));
        first = 0;
      }
    }
  };
  static constexpr std::size_t kLines = 8;
  static constexpr std::size_t kSpare = 64;

  // Of the lines that end before it the one that ends last, so that the others stay open for
  // shorter deadlines; nullptr when it would have to go between.
  Line* line_for(Instant at) {
    Line* best = nullptr;
    for (Line& line : lines_) {
      if (line.empty()) {
        best = best == nullptr ? &line : best;
      } else if (line.entries.back().at <= at &&
                 (best == nullptr || best->empty() ||
                  best->entries.back().at < line.entries.back().at)) {
        best = &line;
      }
    }
    return best;
  }
  // With its line's number, kLines for the heap; nullptr when nothing waits.
  std::pair<const Entry*, std::size_t> earliest() const {
    std::pair<const Entry*, std::size_t> best{heap_.empty() ? nullptr : &heap_.front(), kLines};
    for (std::size_t i = 0; i < kLines; ++i) {
      if (!lines_[i].empty() && (best.first == nullptr || *best.first > lines_[i].front())) {
        best = {&lines_[i].front(), i};
      }
    }
    return best;
  }
  bool is_in_force(const Entry& entry) const {
    const auto found = by_key_.find(entry.key);
    return (found != by_key_.end() && found->second == entry.set) ||
           !guards_.has(Guard::kTimerCancelled);
  }
  void pop_heap() {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    heap_.pop_back();
  }
  // The first entry of each line and of the heap is one in force.
  void tidy(Line& line) {
    while (!line.empty() && !is_in_force(line.front())) {
      line.pop();
    }
  }
  void tidy_heap() {
    while (!heap_.empty() && !is_in_force(heap_.front())) {
      pop_heap();
    }
  }
  // After this key's deadline has changed; of the entries behind the first most are in force.
  void tidy(const Key& key) {
    std::size_t waiting = heap_.size();
    for (Line& line : lines_) {
      if (!line.empty() && line.front().key == key) {
        tidy(line);
      }
      waiting += line.size();
    }
    if (!heap_.empty() && heap_.front().key == key) {
      tidy_heap();
    }
    if (waiting > 2 * by_key_.size() + kSpare && guards_.has(Guard::kTimerCancelled)) {
      drop_outdated();
    }
  }
  void drop_outdated() {
    const auto is_over = [this](const Entry& entry) { return !is_in_force(entry); };
    for (Line& line : lines_) {
      std::erase_if(line.entries, is_over);  // what was taken, too
      line.first = 0;
    }
    std::erase_if(heap_, is_over);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  Guards guards_;
  boost::unordered_flat_map<Key, std::uint64_t, Hash> by_key_;
  std::uint64_t last_set_ = 0;
  std::array<Line, kLines> lines_;
  std::vector<Entry> heap_;
};

}  // namespace kvferry::core
