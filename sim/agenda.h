// The simulator's clock and everything that is still to happen. Single-threaded; equal instants
// keep the order in which they were asked for, so a run depends on its seed alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/instant.h"

namespace kvferry::sim {

class Agenda {
 public:
  using Happening = std::function<void()>;

  Instant now() const { return now_; }

  void at(Instant when, Happening what) {
    entries_.push_back(Entry{std::max(when, now_), next_number_++, std::move(what)});
    std::push_heap(entries_.begin(), entries_.end(), later);
  }
  void after(Duration delay, Happening what) { at(now_ + delay, std::move(what)); }

  // Runs the earliest happening that is due by until and returns true. When there is none the clock
  // moves to until.
  bool run_one(Instant until) {
    if (entries_.empty() || entries_.front().when > until) {
      now_ = std::max(now_, until);
      return false;
    }
    std::pop_heap(entries_.begin(), entries_.end(), later);
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    now_ = entry.when;
    entry.what();
    return true;
  }

 private:
  struct Entry {
    Instant when;
    std::uint64_t number;
    Happening what;
  };
  static bool later(const Entry& a, const Entry& b) {
    return std::pair(a.when, a.number) > std::pair(b.when, b.number);
  }

  Instant now_{std::chrono::seconds(1)};
  std::uint64_t next_number_ = 0;
  std::vector<Entry> entries_;  // a heap
};

}  // namespace kvferry::sim
