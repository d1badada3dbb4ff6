#include "lab/tally.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/transition_cells.h"

namespace kvferry::lab {
namespace {

// Meets every goal by itself.
sim::RunResult full_run() {
  sim::RunResult result;
  result.fired.fill(1);
  result.rooms_succeeded = 4;
  result.rooms_failed = 4;
  result.rooms_unknown = 2;
  result.cells.assign(sim::transition_cells().size() + 1, 1);
  result.cells.back() = 0;
  return result;
}

bool has(const std::vector<std::string>& lines, std::string_view part) {
  return std::any_of(lines.begin(), lines.end(), [part](const std::string& line) {
    return line.find(part) != std::string::npos;
  });
}

TEST(Tally, NothingIsShortWhenAllWasHit) {
  Tally tally;
  for (int i = 0; i < 100; ++i) tally.add(full_run());
  EXPECT_TRUE(tally.shortfalls().empty()) << tally.shortfalls().front();
  EXPECT_EQ(tally.table().find("LOW"), std::string::npos);
}

TEST(Tally, ASilentFaultIsShort) {
  Tally tally;
  sim::RunResult without = full_run();
  without.fired[static_cast<std::size_t>(sim::Fault::kReplay)] = 0;
  tally.add(full_run());
  for (int i = 0; i < 200; ++i) tally.add(without);
  ASSERT_EQ(tally.shortfalls().size(), 1U);
  EXPECT_TRUE(has(tally.shortfalls(), "fault replay fired in 0.50 %"));
}

TEST(Tally, RoomsOfQuietSeedsDoNotCount) {
  Tally tally;
  sim::RunResult failing = full_run();
  failing.rooms_succeeded = 1;
  failing.rooms_failed = 9;
  failing.rooms_unknown = 0;
  tally.add(failing);
  sim::RunResult quiet = full_run();
  quiet.fired.fill(0);
  quiet.rooms_succeeded = 1'000;
  tally.add(quiet);
  EXPECT_TRUE(has(tally.shortfalls(), "10.0 % of the rooms under faults succeeded"));
  EXPECT_FALSE(has(tally.shortfalls(), "faults failed"));
}

TEST(Tally, CellsScaleWithTheSeeds) {
  Tally tally;
  for (int i = 0; i < 1'000; ++i) {
    sim::RunResult result = full_run();
    result.cells[3] = i < 4 ? 1 : 0;  // five are wanted
    tally.add(result);
  }
  ASSERT_EQ(tally.shortfalls().size(), 1U);
  EXPECT_TRUE(has(tally.shortfalls(), ": 4 times, not 5"));
}

TEST(Tally, APairOutsideTheTablesIsWrong) {
  Tally tally;
  sim::RunResult result = full_run();
  result.cells.back() = 1;
  tally.add(result);
  ASSERT_EQ(tally.shortfalls().size(), 1U);
  EXPECT_TRUE(has(tally.shortfalls(), "in no table: 1 times, not 0"));
  EXPECT_NE(tally.table().find("WRONG"), std::string::npos);
}

TEST(Tally, TheTraceDependsOnTheOrder) {
  sim::RunResult one = full_run();
  one.hash = 1;
  sim::RunResult two = full_run();
  two.hash = 2;
  Tally forth;
  forth.add(one);
  forth.add(two);
  Tally back;
  back.add(two);
  back.add(one);
  EXPECT_NE(forth.hash(), back.hash());
}

}  // namespace
}  // namespace kvferry::lab
