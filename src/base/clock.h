// The system's monotonic clock. Not for core, wire or layout.
#pragma once

#include "base/instant.h"

namespace kvferry {

Instant monotonic_now();

}  // namespace kvferry
