// Medians, ratios per round and goals.
#include "bench/transfer/results.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvferry::bench {
namespace {

Series series(std::string engine, std::vector<double> gbps, bool is_peer = false) {
  return {std::move(engine), "64K", is_peer, std::move(gbps), {}};
}

const Goal* find(const std::vector<Goal>& goals, std::string_view start) {
  const auto found = std::find_if(goals.begin(), goals.end(),
                                  [&](const Goal& goal) { return goal.what.starts_with(start); });
  return found == goals.end() ? nullptr : &*found;
}

TEST(Results, MedianOfOddAndEvenCounts) {
  EXPECT_DOUBLE_EQ(median({}), 0);
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(Results, ARatioComparesTheTurnsOfOneRound) {
  // The machine was twice as fast in the second round: the ratio does not move.
  EXPECT_DOUBLE_EQ(ratio_of(series("tcp", {2, 4, 2}), series("raw-stream", {4, 8, 4})), 0.5);
}

TEST(Results, RowsNameTheirReference) {
  const auto rows = make_rows({series("memcpy", {4, 5, 6}), series("shm", {4, 4, 6}),
                               series("raw-stream", {2, 2, 2}), series("other", {1, 1, 1}, true)});
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].reference, "memcpy");
  EXPECT_DOUBLE_EQ(rows[1].ratio, 1.0);
  EXPECT_DOUBLE_EQ(rows[1].min_gbps, 4);
  EXPECT_DOUBLE_EQ(rows[1].max_gbps, 6);
  EXPECT_EQ(rows[3].reference, "raw-stream");
  EXPECT_DOUBLE_EQ(rows[3].ratio, 0.5);
}

TEST(Results, GoalsAreMetAtTheirRatioAndMissedBelow) {
  const auto met = check_goals({series("memcpy", {1, 1, 1}), series("shm", {0.95, 0.96, 0.9})});
  ASSERT_EQ(met.size(), 1U);
  EXPECT_TRUE(met[0].is_met);
  const auto missed = check_goals({series("memcpy", {1, 1, 1}), series("shm", {0.94, 0.96, 0.9})});
  ASSERT_EQ(missed.size(), 1U);
  EXPECT_FALSE(missed[0].is_met);
}

TEST(Results, DigestsAreComparedWithTheSameTransportAndNotJudged) {
  const std::vector<Series> all = {series("raw-stream", {2, 2}), series("tcp", {2, 2}),
                                   series("tcp+digests", {1, 1})};
  const auto rows = make_rows(all);
  EXPECT_EQ(rows[2].reference, "tcp");
  EXPECT_DOUBLE_EQ(rows[2].ratio, 0.5);
  EXPECT_NE(find(check_goals(all), "tcp at"), nullptr);
  EXPECT_EQ(find(check_goals(all), "tcp+digests"), nullptr);
}

TEST(Results, AGoalWithoutItsReferenceOrItsFiguresIsMissed) {
  EXPECT_FALSE(check_goals({series("tcp", {2, 2, 2})}).at(0).is_met);
  EXPECT_FALSE(check_goals({series("raw-stream", {2}), series("tcp", {})}).at(0).is_met);
}

TEST(Results, EveryPeerMustBeBeatenAndMustHaveRun) {
  Series broken = series("broken", {}, true);
  broken.failure = "can't start";
  const auto goals =
      check_goals({series("raw-stream", {2, 2, 2}), series("tcp", {2, 2, 2}),
                   series("slow", {1, 1, 1}, true), series("fast", {3, 3, 3}, true), broken});
  EXPECT_TRUE(find(goals, "tcp at 64K: ahead of slow")->is_met);
  EXPECT_FALSE(find(goals, "tcp at 64K: ahead of fast")->is_met);
  EXPECT_FALSE(find(goals, "tcp at 64K: ahead of broken")->is_met);
}

TEST(Results, ThePlotHasABarForEachRow) {
  const std::string svg =
      to_svg(make_rows({series("memcpy", {4}), series("a<b", {2}, true)}), "title");
  EXPECT_NE(svg.find("memcpy 64K: 4.00 GB/s"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b 64K: 2.00 GB/s"), std::string::npos);
}

}  // namespace
}  // namespace kvferry::bench
