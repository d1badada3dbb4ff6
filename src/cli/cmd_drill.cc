// kvferry drill: hands its arguments to kvferry-lab, whose processes may miss a guard.
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/lab_program.h"

namespace kvferry::cli {
namespace {

constexpr int kExitNotRun = 3;

int drill(std::span<const std::string> words) {
  std::vector<std::string> all = {"drill"};
  all.insert(all.end(), words.begin(), words.end());
  become_lab("kvferry drill", std::move(all));
  return kExitNotRun;
}

}  // namespace

const Command& drill_command() {
  static const Command command{
      "drill", "A fault of the field on real processes, told line by line; --help has its options.",
      "", nullptr, &drill};
  return command;
}

}  // namespace kvferry::cli
