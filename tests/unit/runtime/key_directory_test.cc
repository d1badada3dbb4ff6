#include "runtime/key_directory.h"

#include <gtest/gtest.h>

namespace kvferry::runtime {
namespace {

Instant at(int seconds) { return Instant(std::chrono::seconds(seconds)); }

TEST(KeyDirectory, AllowsWhatARegistryListsAndForAWhileWhatItListed) {
  KeyDirectory keys(std::chrono::seconds(30));
  EXPECT_FALSE(keys.is_allowed("a", at(0)));
  keys.update("r1", {"a", "b"}, at(0));
  EXPECT_TRUE(keys.is_allowed("a", at(1'000)));
  keys.update("r1", {"b"}, at(1'000));
  EXPECT_TRUE(keys.is_allowed("a", at(1'029)));
  EXPECT_FALSE(keys.is_allowed("a", at(1'030)));
  EXPECT_TRUE(keys.is_allowed("b", at(1'030)));
  keys.update("r1", {"b"}, at(1'031));
  EXPECT_EQ(keys.size(), 1U);
}

TEST(KeyDirectory, OneRegistryDoesNotSpeakForAnother) {
  KeyDirectory keys(std::chrono::seconds(30));
  keys.update("r1", {"a"}, at(0));
  keys.update("r2", {"a"}, at(0));
  keys.update("r1", {}, at(1));
  EXPECT_TRUE(keys.is_allowed("a", at(100)));
  keys.update("r2", {}, at(100));
  EXPECT_FALSE(keys.is_allowed("a", at(130)));
}

TEST(KeyDirectory, AKeyThatComesBackIsAllowedAgain) {
  KeyDirectory keys(std::chrono::seconds(30));
  keys.update("r1", {"a"}, at(0));
  keys.update("r1", {}, at(1));
  keys.update("r1", {"a"}, at(2));
  EXPECT_TRUE(keys.is_allowed("a", at(1'000)));
}

}  // namespace
}  // namespace kvferry::runtime
