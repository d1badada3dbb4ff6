// kvferry-lab sim, which `kvferry sim` starts.
#pragma once

#include "cli/command.h"

namespace kvferry::lab {

const cli::Command& sim_command();

}  // namespace kvferry::lab
