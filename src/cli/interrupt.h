// Ctrl-C for commands that start child processes and wait for them: every wait asks this one.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace kvferry::cli {

// Blocks SIGINT and SIGTERM from now on for this thread and those it starts. A second signal ends
// the process at once; the kernel then ends its children.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool requested() const { return requested_.load(std::memory_order_acquire); }

  // Asks every interval until the condition holds, the deadline is over or the signal came; true in
  // the first case.
  bool wait_until(const std::function<bool()>& condition, std::chrono::milliseconds deadline,
                  std::chrono::milliseconds interval = std::chrono::milliseconds(50)) const;

 private:
  std::atomic<bool> requested_{false};
  int signal_fd_ = -1;
  int end_fd_ = -1;
  std::thread watcher_;
};

}  // namespace kvferry::cli
