#include "lab/cmd_bench.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/transfer/worker.h"
#include "cli/bench_parts.h"
#include "cli/cli_parse.h"

namespace kvferry::lab {
namespace {

int run_part(std::span<const std::string> words) {
  const std::string part = words.empty() ? "" : words.front();
  if (part == "worker" && words.size() == 2) return bench::run_worker(words[1]);
  if (part != "transfer") {
    fmt::print(stderr, "kvferry-lab bench: the only part is 'transfer'\n");
    return cli::kExitUsage;
  }
  const cli::Command& command = cli::bench_transfer_command();
  std::vector<const char*> argv = {"kvferry-lab", command.name.data()};
  for (const std::string& word : words.subspan(1)) argv.push_back(word.c_str());
  const std::array<const cli::Command*, 1> commands = {&command};
  return cli::run_command_line(static_cast<int>(argv.size()), argv.data(), commands);
}

}  // namespace

const cli::Command& bench_command() {
  static const cli::Command command{"bench", "What `kvferry bench transfer --guard off` starts.",
                                    "", nullptr, &run_part};
  return command;
}

}  // namespace kvferry::lab
