// The controller's child processes: the two workers, which are this program again, and the
// commands that measure peers.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/transfer/channel.h"
#include "data_plane/fd.h"
#include "kvferry/status.h"
#include "router/json.h"

namespace kvferry::bench {

// Ends with its owner: with SIGTERM to its whole process group, then SIGKILL, and also when the
// controller dies. It ignores the terminal's Ctrl-C, which is for the controller.
class Child {
 public:
  using Fd = data_plane::Fd;

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child();

  pid_t pid() const { return pid_; }
  // Waits without an end signal of its own; false when it still runs after the grace.
  bool wait_exit(std::chrono::milliseconds grace);

  // arguments[0] is the program. Each pair is a descriptor here and its number there.
  static Result<std::unique_ptr<Child>> start(std::vector<std::string> arguments,
                                              std::vector<std::pair<int, int>> descriptors);

 private:
  explicit Child(pid_t pid) : pid_(pid) {}
  pid_t pid_;
};

struct WorkerProcess {
  std::unique_ptr<Child> child;
  Channel control;
};
// side as run_worker() takes it; peer is its end of the channel between the workers.
Result<WorkerProcess> start_worker(const std::string& side, const Channel& peer);

// A command that measures another library by the bench's contract: it prints `ready {json}`, then
// answers each line `run BLOCK SECONDS BATCH` with one line {"gbps": x} or {"error": "..."}, until
// `quit` or the end of its input.
class PeerProcess {
 public:
  static Result<std::unique_ptr<PeerProcess>> start(std::string name, const std::string& command,
                                                    const std::function<bool()>& interrupted);
  ~PeerProcess();

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  const std::string& settings() const { return settings_; }

  // One line and the JSON object that answers it.
  Result<router::JsonDocument> ask(const std::string& line, std::chrono::milliseconds patience,
                                   const std::function<bool()>& interrupted);
  // block: bytes of a page, or kv-mix.
  Result<double> run(const std::string& block, double seconds, std::uint32_t batch,
                     const std::function<bool()>& interrupted);

 private:
  PeerProcess(std::string name, std::unique_ptr<Child> child, data_plane::Fd in, data_plane::Fd out)
      : name_(std::move(name)),
        child_(std::move(child)),
        in_(std::move(in)),
        out_(std::move(out)) {}
  Status write_line(const std::string& line);
  Result<std::string> read_line(std::chrono::milliseconds patience,
                                const std::function<bool()>& interrupted);

  std::string name_;
  std::string version_;
  std::string settings_;
  bool is_ready_ = false;
  std::string unread_;
  std::unique_ptr<Child> child_;
  data_plane::Fd in_;   // its stdin
  data_plane::Fd out_;  // its stdout
};

}  // namespace kvferry::bench
