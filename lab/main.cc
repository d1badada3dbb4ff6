// kvferry-lab: the one binary whose protocol can miss a guard. It is no product: `kvferry sim` and
// `kvferry drill` start it, and the only servers in it are those of a drill.
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/allocator.h"
#include "cli/cli_parse.h"
#include "cli/command.h"
#include "lab/cmd_bench.h"
#include "lab/cmd_drill.h"
#include "lab/cmd_sim.h"
#include "lab/rank/cmd_rank.h"

namespace kvferry::cli {

std::string_view version() { return KVFERRY_VERSION; }

}  // namespace kvferry::cli

int main(int argc, char** argv) {
  using namespace kvferry;  // NOLINT: the only function of this unit
  cli::set_up_allocator();
  // A pipe that goes away is an error value of the write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  const std::array<const cli::Command*, 5> commands = {&lab::sim_command(), &lab::bench_command(),
                                                       &lab::drill_command(), &lab::rank_command(),
                                                       &lab::registry_command()};
  try {
    return cli::run_command_line(argc, argv, commands);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvferry-lab: %s\n", error.what());
    return cli::kExitFalse;
  }
}
