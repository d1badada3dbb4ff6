#include "sim/trace.h"

#include <cstdio>

namespace kvferry::sim {

void Trace::write(Instant now, const std::string& text) const {
  if (reader_) {
    reader_(now, text);
    return;
  }
  const double seconds =
      std::chrono::duration<double>(now.since_start() - std::chrono::seconds(1)).count();
  fmt::print(stderr, "{:>7} {:10.6f} {}\n", event_, seconds, text);
}

}  // namespace kvferry::sim
