#include "cli/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <string_view>
#include <thread>
#include <utility>

extern char** environ;

namespace kvferry::cli {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Runs in the child between fork and exec, where only system calls are allowed.
[[noreturn]] void become(char* const* arguments, char* const* environment, int output, int log,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A terminal's Ctrl-C is for the parent, which then ends its children in order.
  ::setpgid(0, 0);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execve(kThisProgram, arguments, environment);
  ::_exit(127);
}

std::string exit_text(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

ChildProcess::ChildProcess(std::string name, pid_t pid, int output, std::string log_path)
    : name_(std::move(name)), pid_(pid), output_(output), log_path_(std::move(log_path)) {}

ChildProcess::~ChildProcess() {
  end(std::chrono::seconds(5));
  ::close(output_);
}

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(std::string name,
                                                          std::vector<std::string> arguments,
                                                          std::string log_path) {
  const auto failed = [&](std::string_view call) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("{} can't be started: {}: {}", name, call, std::strerror(errno)));
  };
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return failed("pipe2");
  const int log = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) {
    const auto failure = failed("open " + log_path);
    ::close(pipe[0]);
    ::close(pipe[1]);
    return failure;
  }
  arguments.insert(arguments.begin(), "kvferry");
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("KVFERRY_")) environment.emplace_back(*entry);
  }
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(argv.data(), envp.data(), pipe[1], log, parent);
  const auto failure = failed("fork");
  ::close(pipe[1]);
  ::close(log);
  if (pid < 0) {
    ::close(pipe[0]);
    return failure;
  }
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(std::move(name), pid, pipe[0], std::move(log_path)));
}

Result<std::string> ChildProcess::wait_ready(const Interrupt& interrupt,
                                             std::chrono::milliseconds deadline) {
  constexpr std::string_view kMark = " listening on ";
  const auto end = std::chrono::steady_clock::now() + deadline;
  std::string text;
  while (!interrupt.requested() && std::chrono::steady_clock::now() < end) {
    pollfd waiting{output_, POLLIN, 0};
    if (::poll(&waiting, 1, 50) <= 0) continue;
    std::array<char, 512> buffer{};
    const ssize_t count = ::read(output_, buffer.data(), buffer.size());
    if (count <= 0) {
      this->end(std::chrono::seconds(1));
      return fail(FailureCode::kOperatingSystem,
                  fmt::format("{} ended before it was ready ({})", name_, exit_text_));
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
    const std::size_t mark = text.find(kMark);
    const std::size_t newline = mark == std::string::npos ? mark : text.find('\n', mark);
    if (newline != std::string::npos) {
      return text.substr(mark + kMark.size(), newline - mark - kMark.size());
    }
  }
  if (interrupt.requested()) return fail(FailureCode::kAborted, "interrupted");
  return fail(FailureCode::kOperatingSystem,
              fmt::format("{} was not ready after {} ms", name_, deadline.count()));
}

bool ChildProcess::running() {
  if (pid_ <= 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_text_ = exit_text(status);
  pid_ = -1;
  return false;
}

void ChildProcess::end(std::chrono::milliseconds grace) {
  if (!running()) return;
  ::kill(pid_, SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + grace;
  while (running() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  exit_text_ = exit_text(status);
  pid_ = -1;
}

std::string ChildProcess::log_tail(std::size_t lines) const {
  std::ifstream log(log_path_);
  std::deque<std::string> last;
  for (std::string line; std::getline(log, line);) {
    last.push_back(std::move(line));
    if (last.size() > lines) last.pop_front();
  }
  std::string out;
  for (const std::string& line : last) out += "  " + line + "\n";
  return out;
}

}  // namespace kvferry::cli
