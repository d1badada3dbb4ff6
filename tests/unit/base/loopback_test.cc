#include "base/loopback.h"

#include <gtest/gtest.h>

namespace kvferry {
namespace {

TEST(Loopback, KnowsThisMachine) {
  for (const char* host :
       {"localhost", "127.0.0.1", "127.8.8.8", "127.255.255.255", "::1", "[::1]"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
}

TEST(Loopback, TakesNoNameForIt) {
  for (const char* host :
       {"0.0.0.0", "10.0.0.1", "127.evil.example", "127.0.0.1.evil.example", "127.0.0.1a",
        "127.0.0.256", "127.0.0.01", "127.0.0", "127.0.0.", "127..0.1", "127.-1.0.1", "127.",
        "::", "[127.evil]", "example.org", ""}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

}  // namespace
}  // namespace kvferry
