// The kvferry command: the table of its subcommands, handed down from here.
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/allocator.h"
#include "cli/cli_parse.h"
#include "cli/command.h"

namespace kvferry::cli {

std::string_view version() { return KVFERRY_VERSION; }

}  // namespace kvferry::cli

int main(int argc, char** argv) {
  using namespace kvferry::cli;  // NOLINT: the only function of this unit
  set_up_allocator();
  // A client or a pipe that goes away is an error value of the write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  const std::array<const Command*, 8> commands = {
      &serve_command(),    &router_command(), &bootstrap_command(), &demo_command(),
      &quantize_command(), &sim_command(),    &bench_command(),     &drill_command()};
  try {
    return run_command_line(argc, argv, commands);
  } catch (const std::exception& error) {
    // No code of ours throws; what is left is memory or a library, and ends the process in words.
    std::fprintf(stderr, "kvferry: %s\n", error.what());
    return kExitFalse;
  }
}
