// Traces of the protocol's events against the automata of the spec: lawful ones pass, with every
// lawful repetition, and what a missing guard would leave behind is rejected.
#include <gtest/gtest.h>

#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "automata/automaton_set.h"

namespace kvferry::sim {
namespace {

// "event part part, event part, ..." -> "" or the rejection's text. The whole trace before the last
// event must pass, so that a test is rejected where it means to be.
class Trace {
 public:
  explicit Trace(bool local_fence) : set_(AutomatonSet::of_transport(local_fence)) {}

  std::string operator()(const std::string& text) {
    std::istringstream events(text);
    std::string one;
    std::string rejection;
    while (std::getline(events, one, ',')) {
      if (!rejection.empty()) {
        return "too early: " + rejection;
      }
      rejection = step(one);
    }
    return rejection;
  }

 private:
  std::string step(const std::string& text) {
    std::istringstream words(text);
    std::string name;
    words >> name;
    TraceKey key{};
    std::uint64_t part = 0;
    while (words >> part) {
      key.parts.at(key.size++) = part;
    }
    const auto rejected = set_.step(set_.event(name), key);
    return rejected ? rejected->automaton + ": " + rejected->event : "";
  }

  AutomatonSet set_;
};

// Grant 1 with writers 1 and 2, who each write one ticket and have landed it.
const std::string kGranted =
    "grant 1 1, grant 1 2, grant-sent 1 1, grant-sent 1 2, grant-received 1 1, "
    "grant-received 1 2, post 1 1 1, post 1 2 2";
const std::string kLanded = kGranted + ", land 1 1 1, landed 1 1 1, land 1 2 2, landed 1 2 2";
const std::string kAllLanded = kLanded + ", all-landed 1 1, all-landed 1 2";
const std::string kDone =
    kAllLanded + ", done-sent 1 1, done-sent 1 2, done-received 1 1, done-received 1 2";
const std::string kAborted =
    kGranted + ", failed 1, abort-sent 1 1, abort-sent 1 2, abort-received 1 1";

TEST(FencedTrace, SuccessPassesTheFence) {
  Trace trace(true);
  EXPECT_EQ(trace(kDone + ", covered 1, fence-ordered 1, fence-done 1, succeeded 1, released 1, "
                          "consumed-sent 1 1, consumed-sent 1 2, consumed-received 1 1, "
                          "consumed-received 1 2"),
            "");
}

TEST(FencedTrace, DoneMayComeAfterTheFence) {
  Trace trace(true);
  EXPECT_EQ(trace(kAllLanded + ", covered 1, fence-ordered 1, fence-done 1, done-sent 1 1, "
                               "done-sent 1 2, done-received 1 2, done-received 1 1, succeeded 1"),
            "");
}

TEST(FencedTrace, FailureLeavesThroughTheFence) {
  Trace trace(true);
  EXPECT_EQ(trace(kAborted + ", fence-ordered 1, land 1 1 1, fence-done 1, released 1, "
                             "refused 1 2 2, landed 1 1 1, drained-sent 1 1, "
                             "drained-received 1 1, drained-sent 1 1, drained-received 1 1"),
            "");
}

TEST(FencedTrace, MessagesMayRepeat) {
  Trace trace(true);
  EXPECT_EQ(trace(kDone + ", grant-sent 1 1, grant-received 1 1, done-sent 1 1, "
                          "done-received 1 1, covered 1, done-received 1 1"),
            "");
}

TEST(FencedTrace, UnknownThenFenceSettlesATicket) {
  Trace trace(true);
  EXPECT_EQ(trace(kAborted + ", unknown 1 1 1, fence-ordered 1, fence-done 1, drained-sent 1 1, "
                             "landed 1 1 1"),
            "");
}

TEST(FencedTrace, TheWordOfTheFenceSettlesWhatWasPostedAfterIt) {
  Trace trace(true);
  EXPECT_EQ(trace("grant 1 1, grant-sent 1 1, grant-received 1 1, failed 1, fence-ordered 1, "
                  "fence-done 1, released 1, post 1 1 1, abort-sent 1 1, abort-received 1 1, "
                  "unknown 1 1 1, fenced-received 1 1, drained-sent 1 1"),
            "");
}

TEST(FencedTrace, DoneThatWasDueMayLeaveAfterTheEnd) {
  Trace trace(true);
  EXPECT_EQ(trace(kAllLanded + ", failed 1, abort-sent 1 1, abort-received 1 1, drained-sent 1 1, "
                               "done-sent 1 1"),
            "");
}

TEST(FencedTrace, AWriterThatRestartedSaysNothingMore) {
  Trace trace(true);
  EXPECT_EQ(trace(kAborted + ", fence-ordered 1, land 1 2 2, fence-done 1, released 1"), "");
}

struct Wrong {
  const char* guard;
  bool local_fence;
  std::string trace;
  std::string rejection;
};

class WrongTrace : public testing::TestWithParam<Wrong> {};

TEST_P(WrongTrace, IsRejectedAtItsLastEvent) {
  Trace trace(GetParam().local_fence);
  EXPECT_EQ(trace(GetParam().trace), GetParam().rejection);
}

INSTANTIATE_TEST_SUITE_P(
    Fenced, WrongTrace,
    testing::Values(
        Wrong{"FenceBeforeRelease", true, kAborted + ", fence-ordered 1, released 1",
              "page_fenced: released"},
        Wrong{"NoReleaseByTimeout", true, kAborted + ", released 1", "page_fenced: released"},
        Wrong{"FenceBeforeSuccess", true, kDone + ", covered 1, fence-ordered 1, succeeded 1",
              "page_fenced: succeeded"},
        Wrong{"EveryWriterDone", true,
              kAllLanded + ", done-sent 1 1, done-received 1 1, covered 1, fence-ordered 1, "
                           "fence-done 1, succeeded 1",
              "page_fenced: succeeded"},
        Wrong{"LandAfterFence", true, kAborted + ", fence-ordered 1, fence-done 1, land 1 2 2",
              "page_fenced: land"},
        Wrong{"LandAfterRelease", true,
              kAborted + ", fence-ordered 1, fence-done 1, released 1, land 1 2 2",
              "page_fenced: land"},
        Wrong{"LandAfterRestart", true, kGranted + ", life-ended 1, land 1 2 2",
              "page_fenced: land"},
        Wrong{"OneTerminalStatus", true, kDone + ", failed 1, succeeded 1",
              "page_fenced: succeeded"},
        Wrong{"ReleasedOnce", true,
              kAborted + ", fence-ordered 1, fence-done 1, released 1, released 1",
              "page_fenced: released"},
        Wrong{"ConsumedBeforeSuccess", true, kDone + ", covered 1, consumed-sent 1 1",
              "page_fenced: consumed-sent"}),
    [](const auto& wrong) { return std::string(wrong.param.guard); });

INSTANTIATE_TEST_SUITE_P(
    Unfenced, WrongTrace,
    testing::Values(
        Wrong{"EveryWriterDrained", false,
              kAborted + ", land 1 1 1, landed 1 1 1, drained-sent 1 1, drained-received 1 1, "
                         "released 1",
              "page_unfenced: released"},
        Wrong{"NoReleaseByTimeout", false, kAborted + ", released 1", "page_unfenced: released"},
        Wrong{"EveryWriterDone", false,
              kAllLanded + ", done-sent 1 2, done-received 1 2, covered 1, succeeded 1",
              "page_unfenced: succeeded"},
        Wrong{"DrainedBeforeQuiet", false, kAborted + ", drained-sent 1 1", "ticket: drained-sent"},
        Wrong{"UnknownUntilQuiet", false, kAborted + ", unknown 1 1 1, drained-sent 1 1",
              "ticket: drained-sent"},
        Wrong{"LandAfterQuiet", false, kAborted + ", unknown 1 1 1, quiet 1 1 1, land 1 1 1",
              "ticket_unfenced: land"},
        Wrong{"LandAfterTornDown", false, kAborted + ", torn-down 1 1, land 1 1 1",
              "page_unfenced: land"}),
    [](const auto& wrong) { return std::string(wrong.param.guard); });

INSTANTIATE_TEST_SUITE_P(
    Writer, WrongTrace,
    testing::Values(
        Wrong{"Tombstone", true,
              "grant 1 1, grant-sent 1 1, failed 1, abort-sent 1 1, abort-received 1 1, "
              "grant-received 1 1, post 1 1 1",
              "writer: post"},
        Wrong{"RememberSucceeded", true, kDone + ", grant-received 1 1, post 1 1 3",
              "writer: post"},
        Wrong{"NoDoneAfterEnd", true,
              kAborted + ", land 1 1 1, landed 1 1 1, all-landed 1 1, done-sent 1 1",
              "writer: done-sent"},
        Wrong{"DoneAfterLanded", true, kGranted + ", done-sent 1 1", "ticket: done-sent"},
        Wrong{"DoneAfterUnknown", true, kGranted + ", unknown 1 1 1, done-sent 1 1",
              "ticket: done-sent"},
        Wrong{"PostBeforeGrant", true, "grant 1 1, grant-sent 1 1, post 1 1 1", "writer: post"},
        Wrong{"LandedWithoutBytes", true, kGranted + ", landed 1 1 1", "ticket: landed"},
        Wrong{"ReceivedBeforeSent", true, "grant 1 1, grant-received 1 1",
              "message_grant: grant-received"}),
    [](const auto& wrong) { return std::string(wrong.param.guard); });

INSTANTIATE_TEST_SUITE_P(
    Sender, WrongTrace,
    testing::Values(
        Wrong{"SourceHeld", true, "opened 1, source-posted 1 1, sender-failed 1, source-released 1",
              "source: source-released"},
        Wrong{"DoneAfterGiveUp", true,
              "opened 1, source-posted 1 1, sender-failed 1, gave-up 1, source-released 1, "
              "source-read 1 1, source-settled 1 1, committed 1",
              "sender: committed"},
        Wrong{"DoneAfterFailure", true,
              "opened 1, source-posted 1 1, source-settled 1 1, sender-failed 1, committed 1",
              "sender: committed"},
        Wrong{"ReadAfterRelease", true,
              "opened 1, source-posted 1 1, source-read 1 1, source-settled 1 1, committed 1, "
              "source-released 1, source-read 1 1",
              "source: source-read"},
        Wrong{"OneTerminalStatus", true,
              "opened 1, committed 1, source-released 1, sender-succeeded 1, sender-failed 1",
              "sender: sender-failed"}),
    [](const auto& wrong) { return std::string(wrong.param.guard); });

TEST(UnfencedTrace, SuccessNeedsDoneOfEach) {
  Trace trace(false);
  EXPECT_EQ(trace(kDone + ", covered 1, succeeded 1, released 1, consumed-sent 1 1"), "");
}

TEST(UnfencedTrace, TornDownStandsForAWriterThatNeverAnswers) {
  Trace trace(false);
  EXPECT_EQ(trace(kAborted + ", land 1 1 1, landed 1 1 1, drained-sent 1 1, drained-received 1 1, "
                             "torn-down 1 2, released 1"),
            "");
}

TEST(SenderTrace, SuccessAndGiveUp) {
  Trace trace(true);
  EXPECT_EQ(trace("opened 1, source-posted 1 1, source-read 1 1, source-settled 1 1, committed 1, "
                  "source-released 1, sender-succeeded 1"),
            "");
  EXPECT_EQ(trace("opened 2, source-posted 2 1, sender-failed 2, gave-up 2, source-released 2, "
                  "source-read 2 1, source-settled 2 1"),
            "");
}

}  // namespace
}  // namespace kvferry::sim
