#include <cstdio>
#include <cstdlib>

#include "target.h"

namespace kvferry::fuzz {

void require(bool condition, std::string_view what) {
  if (condition) {
    return;
  }
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace kvferry::fuzz
