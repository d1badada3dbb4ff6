#include "bench/transfer/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

#include "base/clock.h"
#include "bench/transfer/worker.h"
#include "router/json.h"

namespace kvferry::bench {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";
constexpr std::chrono::milliseconds kEndGrace{2'000};
// A peer makes and fills its pools before it is ready, and may import a large library.
constexpr std::chrono::milliseconds kPeerStart{120'000};
constexpr std::chrono::milliseconds kPeerGrace{60'000};
constexpr std::size_t kMaxLine = 64U << 10;

auto os_failure(const char* call) {
  return fail(FailureCode::kOperatingSystem, data_plane::errno_text(call));
}

// Runs in the child between fork and exec, where only system calls are allowed.
[[noreturn]] void become(char* const* arguments, const std::vector<std::pair<int, int>>& fds,
                         int* spare, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  // Out of the way first, since a number wanted there may be in use here.
  for (std::size_t i = 0; i < fds.size(); ++i) {
    spare[i] = ::fcntl(fds[i].first, F_DUPFD_CLOEXEC, 64);
  }
  for (std::size_t i = 0; i < fds.size(); ++i) ::dup2(spare[i], fds[i].second);
  ::execvp(arguments[0], arguments);
  ::_exit(127);
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(std::vector<std::string> arguments,
                                            std::vector<std::pair<int, int>> descriptors) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<int> spare(descriptors.size());
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(argv.data(), descriptors, spare.data(), parent);
  if (pid < 0) return os_failure("fork");
  return std::unique_ptr<Child>(new Child(pid));
}

bool Child::wait_exit(std::chrono::milliseconds grace) {
  if (pid_ < 0) return true;
  const Instant end = monotonic_now() + grace;
  while (true) {
    const pid_t ended = ::waitpid(pid_, nullptr, WNOHANG);
    if (ended == pid_ || (ended < 0 && errno == ECHILD)) {
      pid_ = -1;
      return true;
    }
    if (monotonic_now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

Child::~Child() {
  if (pid_ < 0) return;
  const pid_t group = -pid_;
  ::kill(group, SIGTERM);
  if (!wait_exit(kEndGrace)) {
    ::kill(group, SIGKILL);
    wait_exit(kEndGrace);
  }
  // What the child started and left behind.
  ::kill(group, SIGKILL);
}

Result<WorkerProcess> start_worker(const std::string& side, const Channel& peer) {
  auto ends = Channel::make_pair();
  if (!ends) return tl::unexpected(ends.error());
  auto child = Child::start({kThisProgram, "bench", "worker", side},
                            {{ends->second.fd(), kControlFd}, {peer.fd(), kPeerFd}});
  if (!child) return tl::unexpected(child.error());
  return WorkerProcess{std::move(*child), std::move(ends->first)};
}

Result<std::unique_ptr<PeerProcess>> PeerProcess::start(std::string name,
                                                        const std::string& command,
                                                        const std::function<bool()>& interrupted) {
  std::array<int, 2> in{};
  std::array<int, 2> out{};
  if (::pipe2(in.data(), O_CLOEXEC) != 0) return os_failure("pipe2");
  data_plane::Fd in_there(in[0]);
  data_plane::Fd in_here(in[1]);
  if (::pipe2(out.data(), O_CLOEXEC) != 0) return os_failure("pipe2");
  data_plane::Fd out_here(out[0]);
  data_plane::Fd out_there(out[1]);
  auto child = Child::start({"/bin/sh", "-c", command},
                            {{in_there.get(), STDIN_FILENO}, {out_there.get(), STDOUT_FILENO}});
  if (!child) return tl::unexpected(child.error());
  std::unique_ptr<PeerProcess> peer(
      new PeerProcess(std::move(name), std::move(*child), std::move(in_here), std::move(out_here)));
  // So that the end of the child is the end of its output.
  in_there.reset();
  out_there.reset();
  auto line = peer->read_line(kPeerStart, interrupted);
  if (!line) return tl::unexpected(line.error());
  constexpr std::string_view kReadyWord = "ready ";
  if (!line->starts_with(kReadyWord)) {
    return fail(FailureCode::kMalformed,
                fmt::format("peer {} said '{}' instead of ready", peer->name_, *line));
  }
  auto parsed = router::JsonDocument::parse(std::string_view(*line).substr(kReadyWord.size()));
  if (!parsed) return tl::unexpected(parsed.error());
  peer->version_ = parsed->root()["version"].text().value_or("");
  peer->settings_ = parsed->root()["settings"].text().value_or("");
  peer->is_ready_ = true;
  return peer;
}

PeerProcess::~PeerProcess() {
  if (is_ready_ && write_line("quit")) child_->wait_exit(kEndGrace);
}

Result<router::JsonDocument> PeerProcess::ask(const std::string& line,
                                              std::chrono::milliseconds patience,
                                              const std::function<bool()>& interrupted) {
  if (auto sent = write_line(line); !sent) return tl::unexpected(sent.error());
  auto answer = read_line(patience, interrupted);
  if (!answer) return tl::unexpected(answer.error());
  return router::JsonDocument::parse(*answer);
}

Result<double> PeerProcess::run(const std::string& block, double seconds, std::uint32_t batch,
                                const std::function<bool()>& interrupted) {
  auto answer =
      ask(fmt::format("run {} {} {}", block, seconds, batch),
          std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000)) + kPeerGrace,
          interrupted);
  if (!answer) return tl::unexpected(answer.error());
  if (const auto gbps = answer->root()["gbps"].number()) return *gbps;
  return fail(FailureCode::kUnspecified,
              fmt::format("peer {}: {}", name_,
                          answer->root()["error"].text().value_or("an answer without gbps")));
}

Status PeerProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(in_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) return {};
  return fail(FailureCode::kOperatingSystem, fmt::format("peer {} has ended", name_));
}

Result<std::string> PeerProcess::read_line(std::chrono::milliseconds patience,
                                           const std::function<bool()>& interrupted) {
  const Instant end = monotonic_now() + patience;
  while (true) {
    const std::size_t newline = unread_.find('\n');
    if (newline != std::string::npos) {
      std::string line = unread_.substr(0, newline);
      unread_.erase(0, newline + 1);
      return line;
    }
    if (interrupted()) return fail(FailureCode::kAborted, "interrupted");
    if (monotonic_now() >= end || unread_.size() > kMaxLine) {
      return fail(FailureCode::kOperatingSystem,
                  fmt::format("peer {} gave no line within {} ms", name_, patience.count()));
    }
    pollfd waiting{out_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 50) <= 0) continue;
    std::array<char, 4096> buffer{};
    const ssize_t count = ::read(out_.get(), buffer.data(), buffer.size());
    if (count <= 0)
      return fail(FailureCode::kOperatingSystem, fmt::format("peer {} has ended", name_));
    unread_.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace kvferry::bench
