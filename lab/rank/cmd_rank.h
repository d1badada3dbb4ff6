#pragma once

#include "cli/command.h"

namespace kvferry::lab {

// Processes of a drill; the rig starts them and leads them over stdin.
const cli::Command& rank_command();
const cli::Command& registry_command();

}  // namespace kvferry::lab
