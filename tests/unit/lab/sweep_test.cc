#include "lab/sweep.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "never.h"
#include "support/own_path.h"

namespace kvferry::lab {
namespace {

// Every tenth seed fails while it has rooms.
sim::RunResult fake_run(const sim::RunOptions& options) {
  sim::RunResult result;
  result.events = options.seed;
  result.hash = options.seed * 31;
  if (options.seed % 10 == 0 && options.rooms.value_or(9) > 0) {
    result.violation = sim::Violation{"S4", "bytes differ", options.seed, Instant{}};
  }
  return result;
}

class SweepTest : public ::testing::Test {
 protected:
  SweepTest() {
    settings_.seeds = 95;
    settings_.failure_dir = folder_;
    settings_.version = "version=0.0.0";
  }
  ~SweepTest() override { std::filesystem::remove_all(folder_); }

  SimSettings settings_;
  const std::string folder_ = test::own_path("sweep");
};

TEST_F(SweepTest, IsTheSameForAnyNumberOfThreads) {
  settings_.jobs = 1;
  const SweepResult alone = sweep(settings_, fake_run, never, nullptr);
  EXPECT_EQ(alone.tally.seeds(), 95U);
  EXPECT_EQ(alone.failures.size(), 9U);
  settings_.jobs = 8;
  const SweepResult many = sweep(settings_, fake_run, never, nullptr);
  EXPECT_EQ(many.tally.hash(), alone.tally.hash());
  EXPECT_EQ(many.checked_twice, alone.checked_twice);
  ASSERT_EQ(many.failures.size(), 9U);
  EXPECT_EQ(many.failures[4].options.seed, 50U);
}

TEST_F(SweepTest, StopsAtTheLastFailureThatIsWanted) {
  settings_.jobs = 4;
  settings_.max_failures = 2;
  const SweepResult result = sweep(settings_, fake_run, never, nullptr);
  EXPECT_EQ(result.failures.size(), 2U);
  EXPECT_EQ(result.tally.seeds(), 20U);
  EXPECT_FALSE(result.interrupted);
}

TEST_F(SweepTest, SaysWhenItWasInterrupted) {
  settings_.seeds = 1'000'000'000;
  settings_.max_failures = settings_.seeds;
  const SweepResult result = sweep(
      settings_, fake_run, [] { return true; }, nullptr);
  EXPECT_TRUE(result.interrupted);
  EXPECT_LT(result.tally.seeds(), settings_.seeds);
}

TEST_F(SweepTest, AShareIsRunTwiceAndFollowsFromTheSeed) {
  std::uint32_t twice = 0;
  for (std::uint64_t seed = 0; seed < 10'000; ++seed) {
    EXPECT_FALSE(is_run_twice(seed, 0));
    EXPECT_TRUE(is_run_twice(seed, 100));
    twice += is_run_twice(seed, 5) ? 1 : 0;
  }
  EXPECT_GT(twice, 400U);
  EXPECT_LT(twice, 600U);
}

TEST_F(SweepTest, AFailureIsLeftInAFile) {
  settings_.max_failures = 1;
  const SweepResult result = sweep(settings_, fake_run, never, nullptr);
  ASSERT_EQ(result.failures.size(), 1U);
  const std::string text = explain_failure(settings_, result.failures[0], fake_run, true, never);
  EXPECT_NE(text.find("SIM FAILED  seed=0x000000000000000a version=0.0.0"), std::string::npos);
  EXPECT_NE(text.find("shrunk:"), std::string::npos);
  EXPECT_NE(text.find("--rooms 1 --faults none"), std::string::npos) << text;
  std::ifstream file(folder_ + "/0x000000000000000a.txt");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
}

}  // namespace
}  // namespace kvferry::lab
