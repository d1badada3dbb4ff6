#pragma once

#include "cli/command.h"

namespace kvferry::lab {

// kvferry drill
const cli::Command& drill_command();

}  // namespace kvferry::lab
