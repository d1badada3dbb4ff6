// kvferry-lab bench: `kvferry bench transfer --guard off`, and the workers that it starts.
#pragma once

#include "cli/command.h"

namespace kvferry::lab {

const cli::Command& bench_command();

}  // namespace kvferry::lab
