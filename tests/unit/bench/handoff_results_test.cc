// Goals of whole rooms and of the abort case: each can be missed, and what was not measured is
// said.
#include "bench/handoff/handoff_results.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/handoff/abort_case.h"
#include "bench/handoff/handoff_bench.h"

namespace kvferry::bench {
namespace {

RoomSeries series(std::string engine, std::uint32_t concurrency, std::vector<double> rates,
                  double p99_ms = 1, bool is_peer = false) {
  RoomSeries out{std::move(engine), concurrency, is_peer, {}, {}};
  for (const double rate : rates) out.turns.push_back({rate, 1, p99_ms, 1});
  return out;
}

const Figure* find(const std::vector<Figure>& figures, std::string_view part) {
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const Figure& figure) {
    return figure.name.find(part) != std::string::npos;
  });
  return found == figures.end() ? nullptr : &*found;
}

bool is_met(const std::vector<Figure>& figures, std::string_view part) {
  const Figure* figure = find(figures, part);
  EXPECT_NE(figure, nullptr) << part;
  return figure != nullptr && figure->is_met;
}

RoomExtras good_extras() {
  RoomExtras extras;
  extras.has_polls = true;
  extras.poll_p99_us = 100;
  extras.growth = {1.0, 1.2, 9.0};
  return extras;
}

TEST(HandoffResults, ARatioComparesTheTurnsOfOneRound) {
  // The machine was twice as fast in the second round.
  EXPECT_DOUBLE_EQ(
      rate_ratio(series("null", 256, {300, 600, 300}), series("peer", 256, {10, 20, 10})), 30);
  EXPECT_DOUBLE_EQ(rate_ratio(series("null", 256, {300}), series("peer", 256, {})), 0);
}

TEST(HandoffResults, GoalsThatAreJustMet) {
  const auto verdict =
      judge_rooms({series("null", 256, {30, 30, 30}, 5), series("peer", 256, {1, 1, 1}, 90, true),
                   series("null", 8'192, {62}, 150), series("peer", 8'192, {2}, 90, true)},
                  good_extras());
  EXPECT_EQ(verdict.goals.size(), 6U);
  for (const Figure& goal : verdict.goals) EXPECT_TRUE(goal.is_met) << goal.name;
  EXPECT_TRUE(verdict.not_judged.empty());
  EXPECT_DOUBLE_EQ(verdict.ratio_to_peer, 30);
}

TEST(HandoffResults, EachGoalCanBeMissed) {
  RoomExtras extras;
  extras.has_polls = true;
  extras.poll_p99_us = 100.1;
  extras.growth = {1.0, 1.31, 1.4};
  const auto verdict =
      judge_rooms({series("null", 256, {29.9}, 5.1), series("peer", 256, {1}, 90, true),
                   series("null", 8'192, {29}, 151), series("peer", 8'192, {1}, 90, true)},
                  extras);
  EXPECT_EQ(verdict.goals.size(), 6U);
  for (const Figure& goal : verdict.goals) EXPECT_FALSE(goal.is_met) << goal.name;
}

TEST(HandoffResults, WithoutAPeerItsRatioIsNotJudgedAndThatIsSaid) {
  const auto verdict = judge_rooms({series("null", 256, {1})}, {});
  EXPECT_EQ(verdict.goals.size(), 1U);  // the p99 alone
  EXPECT_EQ(verdict.ratio_to_peer, 0);
  // The peer, 8,192 rooms, poll_many and growth.
  EXPECT_EQ(verdict.not_judged.size(), 4U);
}

TEST(HandoffResults, APeerThatFailedMeetsNoGoal) {
  RoomSeries peer = series("peer", 256, {1}, 90, true);
  peer.failure = "it ended";
  const auto verdict = judge_rooms({series("null", 256, {100}), peer}, good_extras());
  EXPECT_FALSE(is_met(verdict.goals, "by that of peer"));
}

TEST(HandoffResults, OtherTransportsAreShownAndNotJudged) {
  EXPECT_TRUE(judge_rooms({series("tcp", 256, {1}, 1'000)}, {}).goals.empty());
  const auto rows =
      make_room_rows({series("tcp", 256, {4, 8, 6}), series("peer", 256, {2, 2, 2}, 1, true)});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_DOUBLE_EQ(rows[0].median.rooms_per_s, 6);
  EXPECT_DOUBLE_EQ(rows[0].min_rooms_per_s, 4);
  EXPECT_DOUBLE_EQ(rows[0].max_rooms_per_s, 8);
  EXPECT_DOUBLE_EQ(rows[0].ratio_to_peer, 3);
}

TEST(HandoffResults, ATurnWithAnyFaultIsNoFigure) {
  EXPECT_EQ(fault_of({}, {}), "");
  SideResult bad;
  bad.failed = 1;
  EXPECT_NE(fault_of(bad, {}), "");
  EXPECT_NE(fault_of({}, bad), "");
  bad = {};
  bad.hung = 1;
  EXPECT_NE(fault_of(bad, {}), "");
  bad = {};
  bad.stray_pages = 1;
  EXPECT_NE(fault_of({}, bad), "");
  bad = {};
  bad.wrong_items = 1;
  EXPECT_NE(fault_of(bad, {}), "");
}

struct Judged {
  AbortCaseOptions options;
  PairTurn before;
  PairTurn after;
  std::vector<Figure> figures() const { return judge_aborts(options, before, after); }
};

Judged clean_case() {
  Judged judged;
  judged.options.rooms = 10;
  for (PairTurn* turn : {&judged.before, &judged.after}) {
    turn->decode.descriptors = turn->prefill.descriptors = 20;
  }
  judged.after.decode.succeeded = judged.after.prefill.succeeded = 9;
  judged.after.decode.failed = judged.after.prefill.failed = 1;
  judged.after.decode.aborts = 1;
  return judged;
}

TEST(AbortCase, ACleanRunMeetsAll) {
  for (const Figure& figure : clean_case().figures()) EXPECT_TRUE(figure.is_met) << figure.name;
}

TEST(AbortCase, EachFaultIsSeenOnEachSide) {
  struct Fault {
    std::uint64_t SideResult::*field;
    const char* figure;
  };
  const std::vector<Fault> faults = {
      {&SideResult::hung, "did not end"},
      {&SideResult::unasked, "without an abort"},
      {&SideResult::changed_ends, "terminal status changed"},
      {&SideResult::stray_pages, "twice or uncalled"},
      {&SideResult::open_handles, "handles left"},
      {&SideResult::open_rooms, "rooms left"},
      {&SideResult::open_grants, "grants left"},
      {&SideResult::open_tickets, "writes left"},
      {&SideResult::quarantine_pages, "quarantine"},
      {&SideResult::descriptors, "descriptors gained"},
  };
  for (const Fault& fault : faults) {
    for (const bool is_decode : {true, false}) {
      Judged judged = clean_case();
      SideResult& side = is_decode ? judged.after.decode : judged.after.prefill;
      ++(side.*fault.field);
      const std::vector<Figure> figures = judged.figures();
      const auto missed = std::find_if(figures.begin(), figures.end(), [&](const Figure& figure) {
        return figure.name.starts_with(is_decode ? "decode" : "prefill") &&
               figure.name.find(fault.figure) != std::string::npos;
      });
      ASSERT_NE(missed, figures.end()) << fault.figure;
      EXPECT_FALSE(missed->is_met) << fault.figure;
    }
  }
}

TEST(AbortCase, WrongBytesAndMissingEndsAreSeen) {
  Judged judged = clean_case();
  judged.after.decode.wrong_items = 1;
  EXPECT_FALSE(is_met(judged.figures(), "wrong bytes"));
  judged = clean_case();
  judged.after.decode.touched_items = 1;
  EXPECT_FALSE(is_met(judged.figures(), "changed while nobody's"));
  judged = clean_case();
  --judged.after.prefill.succeeded;
  EXPECT_FALSE(is_met(judged.figures(), "prefill: rooms without exactly one end"));
  judged = clean_case();
  ++judged.after.decode.succeeded;
  EXPECT_FALSE(is_met(judged.figures(), "decode: rooms without exactly one end"));
}

TEST(AbortCase, ACaseInWhichNothingWasAbortedShowsNothing) {
  Judged judged = clean_case();
  judged.after.decode.aborts = 0;
  EXPECT_FALSE(is_met(judged.figures(), "aborts that were called"));
}

}  // namespace
}  // namespace kvferry::bench
