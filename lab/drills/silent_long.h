// The long form of the drill silent-peer.
#pragma once

#include "lab/drills/drill.h"

namespace kvferry::lab {

Status run_silent_long(DrillScene& scene);

}  // namespace kvferry::lab
