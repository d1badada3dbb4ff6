#include "cli/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

namespace kvferry::cli {

Interrupt::Interrupt() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal_fd_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  end_fd_ = ::eventfd(0, EFD_CLOEXEC);
  watcher_ = std::thread([this] {
    std::array<pollfd, 2> fds = {pollfd{signal_fd_, POLLIN, 0}, pollfd{end_fd_, POLLIN, 0}};
    while (true) {
      if (::poll(fds.data(), fds.size(), -1) < 0) continue;
      if ((fds[1].revents & POLLIN) != 0) return;
      signalfd_siginfo info{};
      if (::read(signal_fd_, &info, sizeof info) != sizeof info) continue;
      if (requested_.exchange(true)) std::_Exit(1);
    }
  });
}

Interrupt::~Interrupt() {
  ::eventfd_write(end_fd_, 1);
  watcher_.join();
  ::close(signal_fd_);
  ::close(end_fd_);
}

bool Interrupt::wait_until(const std::function<bool()>& condition,
                           std::chrono::milliseconds deadline,
                           std::chrono::milliseconds interval) const {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!requested()) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(interval);
  }
  return false;
}

}  // namespace kvferry::cli
