#include "lab/in_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "never.h"

namespace kvferry::lab {
namespace {

TEST(InOrder, ResultsComeInOrderForAnyNumberOfThreads) {
  for (const std::uint32_t jobs : {1U, 2U, 7U}) {
    std::vector<std::uint64_t> taken;
    in_order<std::uint64_t>(
        100, jobs, [](std::uint64_t index) { return index * index; },
        [&](std::uint64_t index, std::uint64_t result) {
          EXPECT_EQ(index, taken.size());
          taken.push_back(result);
          return true;
        },
        never);
    ASSERT_EQ(taken.size(), 100U);
    EXPECT_EQ(taken[99], 99U * 99U);
  }
}

TEST(InOrder, EndsWhenTheTakerHasEnough) {
  std::uint64_t taken = 0;
  in_order<int>(
      1'000'000, 3, [](std::uint64_t) { return 0; },
      [&](std::uint64_t, int) { return ++taken < 5; }, never);
  EXPECT_EQ(taken, 5U);
}

TEST(InOrder, AfterStopWhatIsCompleteIsStillTaken) {
  std::atomic<std::uint64_t> done = 0;
  std::uint64_t taken = 0;
  in_order<int>(
      1'000'000, 2, [&](std::uint64_t) { return static_cast<int>(++done); },
      [&](std::uint64_t index, int) {
        EXPECT_EQ(index, taken++);
        return true;
      },
      [&] { return done > 10; });
  EXPECT_GT(taken, 0U);
  EXPECT_EQ(taken, done);
}

TEST(InOrder, NothingToDo) {
  in_order<int>(
      0, 4, [](std::uint64_t) { return 0; },
      [](std::uint64_t, int) {
        ADD_FAILURE();
        return true;
      },
      never);
}

}  // namespace
}  // namespace kvferry::lab
