// kvferry bench: speed, always beside a reference that was measured in the same rounds. Its parts
// are commands of their own, named "bench PART".
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "bench/control/control_worker.h"
#include "bench/handoff/handoff_worker.h"
#include "bench/transfer/worker.h"
#include "cli/bench_parts.h"
#include "cli/cli_parse.h"
#include "cli/command.h"

namespace kvferry::cli {
namespace {

constexpr const char* kUsage =
    "Usage: kvferry bench PART [options]\n\nParts:\n"
    "  transfer    the transports of this build against memcpy, a raw stream and other "
    "libraries\n"
    "  control     the control link alone against plain libzmq sockets\n"
    "  handoff     whole rooms through the public API, and SGLang's control plane beside them\n\n"
    "kvferry bench PART --help has the options of a part.\n";

// A process of a bench, started by the bench itself.
int run_worker(const std::string& side) {
  if (side == bench::kPrefillSideName || side == bench::kDecodeSideName) {
    return bench::run_handoff_worker(side);
  }
  if (side == bench::kPingSideName || side == bench::kEchoSideName) {
    return bench::run_control_worker(side);
  }
  return bench::run_worker(side);
}

int run_part(std::span<const std::string> words) {
  const std::string part = words.empty() ? "" : words.front();
  if (part == "worker" && words.size() == 2) return run_worker(words[1]);
  if (part == "--help" || part == "-h" || part == "help") {
    fmt::print("{}", kUsage);
    return kExitTrue;
  }
  const std::array parts = {&bench_transfer_command(), &bench_control_command(),
                            &bench_handoff_command()};
  const auto found = std::find_if(parts.begin(), parts.end(), [&](const Command* command) {
    return command->name == "bench " + part;
  });
  if (found == parts.end()) {
    fmt::print(stderr, "kvferry bench: {}\n{}",
               part.empty() ? "which part?" : fmt::format("unknown part '{}'", part), kUsage);
    return kExitUsage;
  }
  std::vector<const char*> argv = {"kvferry", (*found)->name.data()};
  for (const std::string& word : words.subspan(1)) argv.push_back(word.c_str());
  const std::array<const Command*, 1> commands = {*found};
  return run_command_line(static_cast<int>(argv.size()), argv.data(), commands);
}

}  // namespace

const Command& bench_command() {
  static const Command command{"bench",
                               "Speed against references of the same run; --help has its parts.",
                               "", nullptr, &run_part};
  return command;
}

}  // namespace kvferry::cli
