// Time between two instants as the units that people and metrics read.
#pragma once

#include <chrono>

#include "base/instant.h"

namespace kvferry::serve {

inline double elapsed_ms(Instant from, Instant to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}
inline double elapsed_seconds(Instant from, Instant to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace kvferry::serve
