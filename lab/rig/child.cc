#include "lab/rig/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

extern char** environ;

namespace kvferry::lab {
namespace {

constexpr const char* kThisProgram = "/proc/self/exe";

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Between fork and exec, where only system calls are allowed.
[[noreturn]] void become(char* const* arguments, char* const* environment, int input, int output,
                         int log, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // A terminal's Ctrl-C is for the rig, which then ends its processes.
  ::setpgid(0, 0);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execve(kThisProgram, arguments, environment);
  ::_exit(127);
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(std::string name, std::vector<std::string> arguments,
                                            const std::string& log) {
  std::array<int, 2> input{-1, -1};
  std::array<int, 2> output{-1, -1};
  const int log_fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const bool made = log_fd >= 0 && ::pipe2(input.data(), O_CLOEXEC) == 0 &&
                    ::pipe2(output.data(), O_CLOEXEC) == 0;
  arguments.insert(arguments.begin(), "kvferry-lab");
  // Settings of the caller's environment are not the drill's.
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("KVFERRY_")) environment.emplace_back(*entry);
  }
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const pid_t parent = ::getpid();
  const pid_t pid = made ? ::fork() : -1;
  if (pid == 0) become(argv.data(), envp.data(), input[0], output[1], log_fd, parent);
  const int error = errno;
  for (const int fd : {log_fd, input[0], output[1]}) {
    if (fd >= 0) ::close(fd);
  }
  if (pid < 0) {
    if (input[1] >= 0) ::close(input[1]);
    if (output[0] >= 0) ::close(output[0]);
    return fail(FailureCode::kOperatingSystem,
                fmt::format("{} can't be started: {}", name, std::strerror(error)));
  }
  return std::unique_ptr<Child>(new Child(std::move(name), pid, input[1], output[0]));
}

Child::Child(std::string name, pid_t pid, int input, int output)
    : name_(std::move(name)),
      pid_(pid),
      input_(input),
      reader_([this, output] { read_lines(output); }) {}

Child::~Child() {
  kill();
  reader_.join();
  ::close(input_);
}

void Child::read_lines(int output) {
  std::string text;
  std::array<char, 64U << 10> buffer{};
  for (;;) {
    const ssize_t got = ::read(output, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    std::size_t start = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos;
         end = text.find('\n', start)) {
      auto parsed = router::JsonDocument::parse(std::string_view(text).substr(start, end - start));
      start = end + 1;
      if (!parsed) continue;
      std::lock_guard lock(mutex_);
      told_.push_back(std::make_shared<const router::JsonDocument>(std::move(*parsed)));
    }
    text.erase(0, start);
    changed_.notify_all();
  }
  ::close(output);
  std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void Child::send(const router::JsonObject& command) {
  const std::string line = command.str() + "\n";
  // A child that has ended takes nothing more, which whoever waits for its answer is told.
  [[maybe_unused]] const ssize_t written = ::write(input_, line.data(), line.size());
}

Told Child::find(const std::function<bool(router::JsonView)>& fits) const {
  std::lock_guard lock(mutex_);
  for (const Told& told : told_) {
    if (fits(told->root())) return told;
  }
  return nullptr;
}

std::size_t Child::count(const std::function<bool(router::JsonView)>& fits) const {
  std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const Told& told : told_) count += fits(told->root()) ? 1 : 0;
  return count;
}

Result<Told> Child::await(const std::function<bool(router::JsonView)>& fits, std::string_view what,
                          milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::unique_lock lock(mutex_);
  std::size_t next = 0;
  for (;;) {
    for (; next < told_.size(); ++next) {
      if (fits(told_[next]->root())) return told_[next];
    }
    if (ended_) {
      return fail(FailureCode::kOperatingSystem,
                  fmt::format("{} ended; awaited was {}", name_, what));
    }
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout && next == told_.size()) {
      return fail(FailureCode::kRoomTimeout,
                  fmt::format("{}: no {} within {} ms", name_, what, patience.count()));
    }
  }
}

Result<Told> Child::ask(std::string_view what, router::JsonObject command, milliseconds patience) {
  const std::int64_t id = next_id_++;
  send(command.text("do", what).integer("id", id));
  auto answer = await(
      [id](router::JsonView told) {
        return told["id"].integer() == id && told["event"].text() == "answer";
      },
      fmt::format("answer to '{}'", what), patience);
  if (answer && !(*answer)->root()["ok"].boolean().value_or(false)) {
    return fail(FailureCode::kWrongState,
                fmt::format("{}: {}: {}", name_, what,
                            (*answer)->root()["error"].text().value_or("refused")));
  }
  return answer;
}

void Child::stop() { ::kill(pid_, SIGSTOP); }
void Child::resume() { ::kill(pid_, SIGCONT); }

void Child::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
  pid_ = -1;
}

bool Child::has_ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace kvferry::lab
