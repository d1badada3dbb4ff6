// From argv to a running subcommand. CLI11 is confined to cli_parse.cc.
#pragma once

#include <span>

#include "cli/command.h"

namespace kvferry::cli {

// Returns the exit code.
int run_command_line(int argc, const char* const* argv, std::span<const Command* const> commands);

}  // namespace kvferry::cli
