// The thread that drives one engine: takes requests in, works in turns, sleeps when there is
// nothing to do. What the work is, the three schedulers say.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/instant.h"
#include "base/log.h"
#include "serve/answer.h"
#include "serve/wake_fd.h"

namespace kvferry::serve {

struct SchedulerLimits {
  std::uint32_t max_requests = 256;          // accepted and not yet answered
  std::uint32_t queue_timeout_ms = 120'000;  // from arrival until pages or a sequence are free
  std::uint32_t import_pages_per_turn = 4;   // so that running sequences keep stepping
};

class Scheduler {
 public:
  Scheduler(std::string thread_name, SchedulerLimits limits, ServeMetrics& metrics);
  // A subclass calls stop() in its own destructor, while its state is still there.
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void start();
  // Any thread. When the request can't be taken it is answered with the error that is returned.
  Status submit(Submission submission);
  // Any thread. Requests that are not answered fail with kShuttingDown; joins the thread.
  void stop();
  // Any thread. False once the thread ended by itself; problem() then says why.
  bool alive() const { return alive_.load(std::memory_order_acquire); }
  std::string problem() const;
  std::uint32_t requests() const { return requests_.load(std::memory_order_acquire); }
  const SchedulerLimits& limits() const { return limits_; }

 protected:
  // All on the scheduler's thread.
  virtual void accept(Submission submission) = 0;
  // One round of work. True when the next should follow at once.
  virtual bool turn(Instant now) = 0;
  // Answers all requests with this error.
  virtual void fail_all(const Failure& cause) = 0;
  // A further descriptor to sleep on, -1 when there is none.
  virtual int event_fd() const { return -1; }
  // Whether something waits for a deadline, so that a sleep must end soon.
  virtual bool has_deadlines() const { return requests() > 0; }
  void request_done() { requests_.fetch_sub(1, std::memory_order_acq_rel); }
  // Logs why a room failed; aborts are the clients' business and go to the debug level.
  void log_failure(RoomId room, Binding binding, const Failure& failure);

  const std::shared_ptr<WakeFd>& wake() const { return wake_; }
  ServeMetrics& metrics() { return metrics_; }

 private:
  void run() noexcept;
  void loop();
  void sleep() const;

  const std::string thread_name_;
  const SchedulerLimits limits_;
  ServeMetrics& metrics_;
  const std::shared_ptr<WakeFd> wake_ = std::make_shared<WakeFd>();
  std::atomic<std::uint32_t> requests_{0};
  std::atomic<bool> alive_{false};
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<Submission> inbox_;
  // The thread's own: taken from the inbox and not accepted yet.
  std::deque<Submission> batch_;
  std::string problem_;
  log::RateLimit failure_lines_;
  std::thread thread_;
};

}  // namespace kvferry::serve
