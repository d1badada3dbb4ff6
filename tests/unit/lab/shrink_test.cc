#include "sim/shrink.h"

#include <gtest/gtest.h>

namespace kvferry::sim {
namespace {

std::size_t number(Fault fault) { return static_cast<std::size_t>(fault); }

RunResult failed_with(const char* invariant) {
  RunResult result;
  result.violation = Violation{invariant, "it broke", 100, Instant{}};
  result.events = 100;
  for (std::size_t i = 0; i < kFaultKinds; i += 2) result.fired[i] = 1;  // kLoss among them
  result.fired[number(Fault::kCrash)] = 3;
  return result;
}

// Fails with S1 when it has at least rooms rooms and a crash.
RunSeed needs(std::uint32_t rooms, std::uint32_t& runs) {
  return [rooms, &runs](const RunOptions& options) {
    ++runs;
    const bool fails =
        options.rooms.value_or(200) >= rooms && options.faults.test(number(Fault::kCrash));
    return fails ? failed_with("S1") : RunResult{};
  };
}

TEST(Shrink, FindsTheFewestRoomsAndFaults) {
  std::uint32_t runs = 0;
  const Shrunk shrunk = shrink(RunOptions{}, failed_with("S1"), 200, needs(3, runs));
  EXPECT_EQ(shrunk.options.rooms, 3U);
  EXPECT_EQ(shrunk.options.faults, FaultSet{}.set(number(Fault::kCrash)));
  EXPECT_EQ(shrunk.result.violation->invariant, "S1");
  EXPECT_EQ(shrunk.runs, runs);
  EXPECT_LE(runs, kMaxShrinkRuns);
}

TEST(Shrink, AnotherInvariantIsAnotherBug) {
  const RunSeed run = [](const RunOptions& options) {
    return failed_with(options.rooms.value_or(10) < 10 || !options.faults.all() ? "L1" : "S1");
  };
  const Shrunk shrunk = shrink(RunOptions{}, failed_with("S1"), 10, run);
  EXPECT_FALSE(shrunk.options.rooms);
  EXPECT_TRUE(shrunk.options.faults.all());
}

TEST(Shrink, KeepsWhatTheCallerHadRestricted) {
  RunOptions options;
  options.seed = 7;
  options.until_event = 100;
  options.rooms = 20;
  options.faults = FaultSet{}.set(number(Fault::kCrash)).set(number(Fault::kLoss));
  std::uint32_t runs = 0;
  const Shrunk shrunk = shrink(options, failed_with("S1"), 200, needs(20, runs));
  EXPECT_EQ(shrunk.options.seed, 7U);
  EXPECT_EQ(shrunk.options.rooms, 20U);
  EXPECT_EQ(shrunk.options.faults, FaultSet{}.set(number(Fault::kCrash)));
  EXPECT_FALSE(shrunk.options.until_event) << "a shrunk run ends elsewhere";
}

TEST(Shrink, StopsWhenItIsTold) {
  std::uint32_t runs = 0;
  const Shrunk shrunk =
      shrink(RunOptions{}, failed_with("S1"), 200, needs(3, runs), [&runs] { return runs >= 2; });
  EXPECT_EQ(runs, 2U);
  EXPECT_TRUE(shrunk.result.violation);
}

}  // namespace
}  // namespace kvferry::sim
