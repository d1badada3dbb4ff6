#include "base/thread_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace kvferry {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Duration kStall = std::chrono::hours(1);

TEST(ThreadRoster, AThreadThatWaitsIsSoundHoweverLong) {
  ThreadRoster roster;
  const ThreadPlacePtr place = roster.enrol("kvf-test", "tests");
  place->works();
  place->waits();
  EXPECT_EQ(place->working_for(monotonic_now() + 2 * kStall), Duration::zero());
  EXPECT_THAT(roster.problems(monotonic_now() + 2 * kStall, kStall), IsEmpty());
}

TEST(ThreadRoster, AThreadAtOneTurnForTooLongIsStalled) {
  ThreadRoster roster;
  const ThreadPlacePtr place = roster.enrol("kvf-test", "tests");
  place->works();
  EXPECT_THAT(roster.problems(monotonic_now(), kStall), IsEmpty());
  EXPECT_THAT(roster.problems(monotonic_now() + 2 * kStall, kStall),
              ElementsAre(HasSubstr("thread kvf-test (tests) stalled")));
  place->works();  // the next turn
  EXPECT_THAT(roster.problems(monotonic_now(), kStall), IsEmpty());
}

TEST(ThreadRoster, AnEndThatNobodyOrderedShows) {
  ThreadRoster roster;
  roster.enrol("kvf-told", "was told to end")->ends({});
  const ThreadPlacePtr place = roster.enrol("kvf-test", "tests");
  place->works();
  place->ends("no memory");
  EXPECT_THAT(roster.problems(monotonic_now() + 2 * kStall, kStall),
              ElementsAre("thread kvf-test (tests) ended: no memory"));
}

TEST(ThreadRoster, WhatABodyThrowsIsTheCauseOfItsEnd) {
  ThreadRoster roster;
  const ThreadPlacePtr done = roster.enrol("kvf-done", "does its work");
  const ThreadPlacePtr thrown = roster.enrol("kvf-thrown", "throws");
  std::thread([&] { done->run([] {}); }).join();
  std::thread([&] { thrown->run([] { throw std::runtime_error("no more"); }); }).join();
  EXPECT_TRUE(done->has_ended());
  EXPECT_TRUE(thrown->has_ended());
  EXPECT_EQ(done->cause(), "");
  EXPECT_EQ(thrown->cause(), "no more");
}

TEST(ThreadRoster, TurnsAreCounted) {
  ThreadRoster roster;
  const ThreadPlacePtr place = roster.enrol("kvf-test", "tests");
  const std::uint64_t before = place->turn();
  place->works();
  EXPECT_GT(place->turn(), before);
  EXPECT_TRUE(place->is_working());
  EXPECT_FALSE(place->has_ended());
}

TEST(ThreadRoster, WithoutOneAPlaceIsMadeAllTheSame) {
  const ThreadPlacePtr place = enrol(nullptr, "kvf-test", "tests");
  place->works();
  EXPECT_TRUE(place->is_vital());
}

}  // namespace
}  // namespace kvferry
