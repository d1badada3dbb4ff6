// How long the calls of an engine's thread took: each call of the API is made within measure().
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "lab/rank/journal.h"

namespace kvferry::lab {

struct CallFigures {
  std::uint64_t calls = 0;
  double p999_ms = 0;
  double max_ms = 0;
  std::string_view slowest;  // the call that took max_ms
  double running_ms = 0;     // of the call that has not returned; 0: none
  std::string_view running;
};

// Threads: measure() from the engine's thread, figures() from any. Names are literals.
class CallTimes {
 public:
  explicit CallTimes(Journal& journal) : journal_(journal) {}

  template <typename Call>
  auto measure(const char* name, Call&& call) {
    struct Scope {
      CallTimes& times;
      const char* name;
      Instant began = times.begin(name);
      ~Scope() { times.end(name, began); }
    } scope{*this, name};
    return call();
  }

  // Of all calls since the last restart().
  CallFigures figures() const;
  void restart();

 private:
  Instant begin(const char* name);
  void end(const char* name, Instant began);

  Journal& journal_;
  std::atomic<std::int64_t> running_since_ns_{0};
  std::atomic<const char*> running_{""};
  mutable std::mutex mutex_;
  std::vector<std::uint32_t> microseconds_;
  std::uint32_t longest_us_ = 0;
  const char* longest_ = "";
};

}  // namespace kvferry::lab
