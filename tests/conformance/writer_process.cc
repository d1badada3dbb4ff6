#include "writer_process.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/crypto.h"
#include "recording_sink.h"

extern char** environ;

namespace kvferry::data_plane {
namespace {

pid_t spawn(const std::vector<std::string>& arguments, int channel) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, channel, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, channel, STDOUT_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? pid : -1;
}

}  // namespace

std::optional<std::vector<std::uint8_t>> bytes_of_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<std::uint8_t> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char* const digits = text.data() + i * 2;
    const auto [end, error] = std::from_chars(digits, digits + 2, bytes[i], 16);
    if (error != std::errc() || end != digits + 2) return std::nullopt;
  }
  return bytes;
}

WriterProcess::WriterProcess(const Case& c, std::uint32_t write_timeout_ms) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  channel_ = Fd(ends[0]);
  const Fd childs(ends[1]);
  pid_ = spawn({KVFERRY_WRITER, std::to_string(static_cast<int>(c.kind)),
                std::to_string(c.shape.regions), std::to_string(c.shape.item_bytes),
                std::to_string(c.shape.items), std::to_string(write_timeout_ms)},
               childs.get());
  const auto line = read_line();
  if (!line || line->rfind("blob ", 0) != 0) std::abort();
  blob_ = bytes_of_hex(std::string_view(*line).substr(5)).value();
}

WriterProcess::~WriterProcess() { kill_now(); }

bool WriterProcess::connect(const SessionLink& target_end,
                            std::span<const std::uint8_t> target_blob) {
  std::ostringstream line;
  line << "link " << target_end.epoch.value() << ' ' << to_hex(target_end.secret) << ' '
       << to_hex(target_blob);
  return tell(line.str()) && read_line() == "ready";
}

void WriterProcess::set_generation(std::uint32_t slot, std::uint64_t generation) {
  tell("generation " + std::to_string(slot) + ' ' + std::to_string(generation));
}

std::optional<WriterProcess::Flushed> WriterProcess::flush() {
  if (!tell("flush")) return std::nullopt;
  const auto line = read_line();
  if (!line) return std::nullopt;
  std::istringstream words(*line);
  std::string word;
  Flushed flushed;
  words >> word >> flushed.posted >> flushed.landed >> flushed.refused >> flushed.unknown >>
      flushed.quiet >> flushed.repeated;
  if (!words || word != "flushed") return std::nullopt;
  return flushed;
}

void WriterProcess::kill_now() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void WriterProcess::stop_now() {
  ::kill(pid_, SIGSTOP);
  ::waitpid(pid_, nullptr, WUNTRACED);
}

void WriterProcess::resume() { ::kill(pid_, SIGCONT); }

bool WriterProcess::tell(const std::string& line) {
  const std::string text = line + '\n';
  return ::send(channel_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(text.size());
}

std::optional<std::string> WriterProcess::read_line() {
  for (;;) {
    const std::size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    pollfd polled{channel_.get(), POLLIN, 0};
    const auto patience = std::chrono::milliseconds(kPatience).count();
    if (::poll(&polled, 1, static_cast<int>(patience)) != 1) return std::nullopt;
    char bytes[4'096];
    const ssize_t got = ::read(channel_.get(), bytes, sizeof bytes);
    if (got <= 0) return std::nullopt;
    read_.append(bytes, static_cast<std::size_t>(got));
  }
}

}  // namespace kvferry::data_plane
