#include "lab/caught.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kvferry::lab {
namespace {

TEST(Caught, AnExceptionIsAViolation) {
  const sim::RunSeed run = [](const sim::RunOptions&) -> sim::RunResult {
    throw std::out_of_range("no such page");
  };
  const sim::RunResult result = run_caught(run, sim::RunOptions{});
  ASSERT_TRUE(result.violation);
  EXPECT_EQ(result.violation->invariant, "crash");
  EXPECT_EQ(result.violation->what, "no such page");
}

TEST(Caught, AnotherTraceForTheSameSeedIsAViolation) {
  std::uint64_t runs = 0;
  sim::RunResult result = run_twice(
      [&](const sim::RunOptions&) {
        sim::RunResult out;
        out.hash = ++runs;
        return out;
      },
      sim::RunOptions{});
  ASSERT_TRUE(result.violation);
  EXPECT_EQ(result.violation->invariant, "M1");
  EXPECT_EQ(runs, 2U);

  result = run_twice([](const sim::RunOptions&) { return sim::RunResult{}; }, sim::RunOptions{});
  EXPECT_FALSE(result.violation);
}

}  // namespace
}  // namespace kvferry::lab
