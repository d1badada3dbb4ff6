// What every server command does around its server: signals, the ready line, drain and stop.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/settings.h"

namespace kvferry::cli {

struct ServerProcessOptions {
  bool exit_with_parent = false;
  std::uint32_t drain_timeout_ms = 30'000;
  void declare(Settings& settings);
};

// Blocks SIGINT and SIGTERM for this thread and those it starts from now on, so that they arrive at
// wait_for_end() alone. Make it before the server.
class ServerProcess {
 public:
  explicit ServerProcess(const ServerProcessOptions& options);
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  struct Server {
    std::string_view role;
    std::string address;                                  // host:port
    std::function<void(std::uint32_t timeout_ms)> drain;  // waits for running requests
    std::function<void()> stop;
  };
  // Prints "kvferry ROLE listening on ADDRESS" on stdout and waits for a signal: the first drains
  // and stops, a second one ends the process at once. Returns the exit code.
  int serve(const Server& server);

 private:
  ServerProcessOptions options_;
  int signal_fd_ = -1;
};

}  // namespace kvferry::cli
