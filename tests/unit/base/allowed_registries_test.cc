#include "base/allowed_registries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Options fleet() {
  Options options;
  options.bootstrap_addresses = {"10.0.0.1:8998"};
  options.bootstrap_allow = {"10.0.0.2:9000", "*:8998", "[::1]:7000"};
  return options;
}

TEST(AllowedRegistries, TakesWhatIsListedAndEveryHostAtAStarredPort) {
  EXPECT_TRUE(allows_registry(fleet(), "10.0.0.1:8998"));
  EXPECT_TRUE(allows_registry(fleet(), "10.0.0.2:9000"));
  EXPECT_TRUE(allows_registry(fleet(), "10.9.9.9:8998"));
  EXPECT_TRUE(allows_registry(fleet(), "[fe80::1]:8998"));
  EXPECT_TRUE(allows_registry(fleet(), "[::1]:7000"));
}

TEST(AllowedRegistries, RefusesEverythingElse) {
  for (const char* address : {"10.0.0.1:9000", "10.0.0.2:9001", "10.0.0.2:90001", "10.0.0.2",
                              "10.0.0.2:", ":8998", "*:8998", "8998", ""}) {
    EXPECT_FALSE(allows_registry(fleet(), address)) << address;
  }
  EXPECT_FALSE(allows_registry(Options{}, "10.0.0.1:8998"));
}

TEST(AllowedRegistries, ListsTheRegistriesOfOneHost) {
  EXPECT_THAT(allowed_registries_on(fleet(), "10.0.0.1"), ElementsAre("10.0.0.1:8998"));
  EXPECT_THAT(allowed_registries_on(fleet(), "10.0.0.2"),
              ElementsAre("10.0.0.2:8998", "10.0.0.2:9000"));
  EXPECT_THAT(allowed_registries_on(fleet(), "elsewhere"), ElementsAre("elsewhere:8998"));
  EXPECT_THAT(allowed_registries_on(Options{}, "10.0.0.1"), IsEmpty());
}

}  // namespace
}  // namespace kvferry
