// kvferry sim: hands its arguments to kvferry-lab, which lies beside this program. The product has
// no simulator in it, and nothing of what the simulator can switch off.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"

namespace kvferry::cli {
namespace {

constexpr const char* kLabProgram = "kvferry-lab";

// Returns only when the lab can't be started.
int become_lab(std::span<const std::string> words) {
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string lab = (program.parent_path() / kLabProgram).string();
  std::vector<std::string> arguments = {lab, "sim"};
  arguments.insert(arguments.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(lab.c_str(), argv.data());
  fmt::print(stderr,
             "kvferry sim: {} can't be started: {}; the simulator is a program of its own, which "
             "`make` builds beside this one\n",
             lab, std::strerror(errno));
  return kExitFalse;
}

}  // namespace

const Command& sim_command() {
  static const Command command{
      "sim", "The protocol in a simulated world of faults; --help has its options.", "", nullptr,
      &become_lab};
  return command;
}

}  // namespace kvferry::cli
