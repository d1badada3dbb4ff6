// One thread that waits for sockets, for tasks from other threads and for a periodic tick.
//
// add, change, remove and the handlers run on the loop's thread, or before start and after stop.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/instant.h"
#include "base/thread_roster.h"
#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::data_plane {

class EventLoop {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void on_ready(std::uint32_t epoll_events) = 0;
  };
  using Task = std::function<void()>;
  using Token = std::uint64_t;  // never reused, so that a late event can't reach another handler

  EventLoop() = default;
  ~EventLoop();  // as stop()
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  struct Settings {
    Duration period{};  // between two ticks
    Duration poll{};    // see stay_awake(); zero: sleep at once
  };

  // on_tick runs every period while wants_ticks(true) is in force. place: where the thread is
  // listed.
  Status open(Settings settings, std::function<void(Instant now)> on_tick, ThreadPlacePtr place);
  void start();
  // Runs what was posted before, then ends the thread. Tasks posted afterwards are dropped.
  void stop();
  // From any thread.
  void post(Task task);

  void wants_ticks(bool wanted) { ticking_ = wanted; }
  Token add(int fd, std::uint32_t epoll_events, Handler* handler);
  void change(Token token, int fd, std::uint32_t epoll_events);
  void remove(Token token, int fd);
  // More is likely to follow soon: after this turn the loop polls for it for Settings::poll before
  // it sleeps, since a core that has gone idle takes its time to wake up.
  void stay_awake() { stays_awake_ = true; }
  // Monotonic time at the start of this turn of the loop.
  Instant now() const { return now_; }

 private:
  void run();
  void turn_until_stopped();
  int wait_for_events(std::span<epoll_event> events, int timeout_ms);
  bool run_tasks();

  ThreadPlacePtr place_;
  Fd epoll_;
  Fd wake_;
  Settings settings_;
  std::function<void(Instant)> on_tick_;
  bool ticking_ = false;
  Instant now_{};
  bool stays_awake_ = false;
  Instant awake_until_{};
  Token next_token_ = 1;
  std::unordered_map<Token, Handler*> handlers_;

  std::mutex mutex_;
  std::vector<Task> tasks_;
  bool stopping_ = false;
  std::vector<Task> running_;
  std::thread thread_;
};

}  // namespace kvferry::data_plane
