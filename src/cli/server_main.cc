#include "cli/server_main.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "cli/command.h"

namespace kvferry::cli {
namespace {

sigset_t end_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// Waits until one of the two can be read; true when it is the first.
bool first_is_readable(int first, int second) {
  std::array<pollfd, 2> fds = {pollfd{first, POLLIN, 0}, pollfd{second, POLLIN, 0}};
  while (::poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
  return (fds[0].revents & POLLIN) != 0;
}

int take_signal(int fd) {
  signalfd_siginfo info{};
  return ::read(fd, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace

void ServerProcessOptions::declare(Settings& settings) {
  settings.number<std::uint32_t>("drain_timeout_ms", "ms", drain_timeout_ms, 0, 3'600'000,
                                 "after SIGTERM, how long running requests may go on");
  settings.flag("exit_with_parent", exit_with_parent,
                "drain and end when the process that started this one ends");
}

ServerProcess::ServerProcess(const ServerProcessOptions& options) : options_(options) {
  const sigset_t set = end_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  if (options_.exit_with_parent) {
    const pid_t parent = ::getppid();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    // The parent may have ended before the order was given; then nobody would send the signal.
    if (::getppid() != parent) ::raise(SIGTERM);
  }
}

ServerProcess::~ServerProcess() {
  if (signal_fd_ >= 0) ::close(signal_fd_);
}

int ServerProcess::serve(const Server& server) {
  std::printf("kvferry %.*s listening on %s\n", static_cast<int>(server.role.size()),
              server.role.data(), server.address.c_str());
  std::fflush(stdout);

  const int ended = ::eventfd(0, EFD_CLOEXEC);
  first_is_readable(signal_fd_, ended);
  log::info("{}: draining for at most {} ms",
            take_signal(signal_fd_) == SIGINT ? "SIGINT" : "SIGTERM", options_.drain_timeout_ms);
  std::thread worker([&] {
    server.drain(options_.drain_timeout_ms);
    server.stop();
    ::eventfd_write(ended, 1);
  });
  if (first_is_readable(signal_fd_, ended)) {
    log::warning("a second signal: ending at once");
    std::_Exit(kExitFalse);
  }
  worker.join();
  ::close(ended);
  log::info("ended");
  return kExitTrue;
}

}  // namespace kvferry::cli
