// Looks after the threads that a manager can't do without: tells when one of them has ended without
// being told to, or has been at one turn for so long that it is taken for dead. A thread of its
// own, that waits nearly always.
//
// How long a turn lasts is counted in the watchdog's own looks and not read off the clock, so that
// a process which was paused as a whole, or starved, finds nobody dead when it goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/thread_roster.h"
#include "kvferry/status.h"

namespace kvferry::runtime {

class Watchdog {
 public:
  // why: one sentence that names the thread. Called once at most, on the watchdog's thread, which
  // ends then: what a manager without one of its threads does is no business to look after.
  using OnDead = std::function<void(const std::string& why)>;

  Watchdog(ThreadRoster& roster, Duration dead_after, OnDead on_dead);
  ~Watchdog();  // as stop()
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  Status start();
  void stop();

 private:
  struct Seen {
    std::uint64_t turn = 0;
    std::uint32_t looks = 0;  // in a row at which it worked at that turn
  };

  void run();
  std::string look();  // why a thread is dead; empty when none is

  ThreadRoster& roster_;
  const Duration interval_;
  const std::uint32_t dead_after_looks_;
  const OnDead on_dead_;
  const ThreadPlacePtr place_;
  std::unordered_map<const ThreadPlace*, Seen> seen_;  // the thread's own

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvferry::runtime
