// A server of the demo: a child process of this executable. It never outlives its parent: the
// kernel kills it when the thread that started it ends, and the destructor ends and reaps it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/interrupt.h"
#include "kvferry/status.h"

namespace kvferry::cli {

class ChildProcess {
 public:
  // Its stdout is a pipe that is read for the ready line, its stderr goes to log_path. Settings of
  // this process's environment (KVFERRY_...) are not passed on. Call from the main thread.
  static Result<std::unique_ptr<ChildProcess>> start(std::string name,
                                                     std::vector<std::string> arguments,
                                                     std::string log_path);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Waits for "kvferry ROLE listening on HOST:PORT" and gives the address. Fails when the process
  // ends first, at the deadline and on interrupt.
  Result<std::string> wait_ready(const Interrupt& interrupt, std::chrono::milliseconds deadline);

  // SIGTERM, and SIGKILL when it is still there after the grace. Idempotent.
  void end(std::chrono::milliseconds grace);
  bool running();

  const std::string& name() const { return name_; }
  // The last lines of its log.
  std::string log_tail(std::size_t lines) const;

 private:
  ChildProcess(std::string name, pid_t pid, int output, std::string log_path);

  std::string name_;
  pid_t pid_;
  int output_;
  std::string log_path_;
  std::string exit_text_;
};

}  // namespace kvferry::cli
