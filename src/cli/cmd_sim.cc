// kvferry sim: hands its arguments to kvferry-lab.
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/lab_program.h"

namespace kvferry::cli {
namespace {

int simulate(std::span<const std::string> words) {
  std::vector<std::string> all = {"sim"};
  all.insert(all.end(), words.begin(), words.end());
  return become_lab("kvferry sim", std::move(all));
}

}  // namespace

const Command& sim_command() {
  static const Command command{
      "sim", "The protocol in a simulated world of faults; --help has its options.", "", nullptr,
      &simulate};
  return command;
}

}  // namespace kvferry::cli
