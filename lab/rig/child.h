// A process of a drill: this program again, under another command, led by lines on its stdin and
// listened to on its stdout. It never outlives the rig: the kernel kills it when the thread that
// started it ends, its stdin ends with the rig, and the destructor kills and reaps it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kvferry/status.h"
#include "router/json.h"

namespace kvferry::lab {

using std::chrono::milliseconds;

// One line that the process wrote; views are valid as long as it lives.
using Told = std::shared_ptr<const router::JsonDocument>;

// Threads: one leads; waiting may be ended from any by interrupt().
class Child {
 public:
  // log: where its stderr goes. Call from a thread that outlives the child.
  static Result<std::unique_ptr<Child>> start(std::string name, std::vector<std::string> arguments,
                                              const std::string& log);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }

  void send(const router::JsonObject& command);
  // The first line, of all it ever told, that fits. A failure names the process and what was
  // awaited, and how the process ended, if it did.
  Result<Told> await(const std::function<bool(router::JsonView)>& fits, std::string_view what,
                     milliseconds patience);
  // As await, of lines that came so far.
  Told find(const std::function<bool(router::JsonView)>& fits) const;
  std::size_t count(const std::function<bool(router::JsonView)>& fits) const;
  // Sends the command under a fresh id and waits for its answer; one that is not ok is a failure.
  Result<Told> ask(std::string_view what, router::JsonObject command,
                   milliseconds patience = std::chrono::seconds(5));

  void stop();    // SIGSTOP
  void resume();  // SIGCONT
  void kill();    // SIGKILL, and waits for its end
  bool has_ended() const;

 private:
  Child(std::string name, pid_t pid, int input, int output);
  void read_lines(int output);

  const std::string name_;
  pid_t pid_;
  int input_;
  std::int64_t next_id_ = 1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Told> told_;
  bool ended_ = false;
  std::thread reader_;
};

}  // namespace kvferry::lab
