// Texts of --help and --print-config.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace kvferry::cli {

std::string overview(std::span<const Command* const> commands);
std::string command_help(const Command& command, const Settings& settings);
// One line per setting: name, value, unit, source.
std::string print_config(const Settings& settings);

}  // namespace kvferry::cli
