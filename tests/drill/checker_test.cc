// The checker over journals that are written by hand: what holds has no finding, and each invariant
// that is broken has one.
#include "lab/rig/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/command.h"

// What each program of the project says of itself.
std::string_view kvferry::cli::version() { return "0.0.0"; }

namespace kvferry::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckerTest : public ::testing::Test {
 protected:
  CheckerTest() {
    std::string name = std::filesystem::temp_directory_path() / "kvferry-checker-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~CheckerTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& life, const std::string& lines) {
    const std::filesystem::path path = folder_ / (life + ".jsonl");
    std::ofstream(path) << lines;
    journals_[life] = path;
  }
  std::vector<std::string> invariants(double deadline_ms = 0) {
    const auto verdict = check_journals(journals_, deadline_ms);
    if (!verdict) return {"unreadable: " + verdict.error().what};
    std::vector<std::string> names;
    for (const Finding& finding : verdict->findings) names.push_back(finding.invariant);
    return names;
  }

  std::filesystem::path folder_;
  std::map<std::string, std::filesystem::path> journals_;
};

// Room 1 gets page 3, a write lands, it succeeds and gives the page back; then room 2 has it.
constexpr const char* kSound = R"({"ns":100,"at":"granted","room":1,"binding":1,"pages":[3]}
{"ns":110,"at":"slot","session":9,"slot":0,"generation":1,"page":3}
{"ns":120,"at":"landed","session":9,"slot":0,"generation":1,"region":0,"page":3,"offset":0,"bytes":8}
{"ns":130,"at":"end","room":1,"binding":1,"status":"Success","after_ms":10,"wrong_bytes":0}
{"ns":140,"at":"returned","room":1,"binding":1,"pages":[3]}
{"ns":150,"at":"granted","room":2,"binding":1,"pages":[3]}
)";

TEST_F(CheckerTest, WhatHoldsHasNoFinding) {
  write("d0#1", kSound);
  EXPECT_THAT(invariants(1'000), IsEmpty());
  const auto verdict = check_journals(journals_, 0);
  EXPECT_EQ(verdict->landings, 1U);
  EXPECT_EQ(verdict->rooms, 1U);
  EXPECT_EQ(verdict->succeeded, 1U);
}

TEST_F(CheckerTest, AWriteOfARoomThatIsOverInThePageOfTheNext) {
  write("d0#1", std::string(kSound) +
                    R"({"ns":200000000,"at":"landed","session":9,"slot":0,"generation":1,)"
                    R"("region":0,"page":3,"offset":0,"bytes":8})"
                    "\n");
  EXPECT_THAT(invariants(), ElementsAre("I1"));
  EXPECT_EQ(check_journals(journals_, 0)->late_landings, 1U);
}

// Its line is written after the copy, so that it may come a moment after the page's return.
TEST_F(CheckerTest, ALandingMayBeToldALittleLate) {
  write("d0#1", std::string(kSound) +
                    R"({"ns":10000000,"at":"landed","session":9,"slot":0,"generation":1,)"
                    R"("region":0,"page":3,"offset":0,"bytes":8})"
                    "\n");
  EXPECT_THAT(invariants(), IsEmpty());
}

TEST_F(CheckerTest, APageThatTwoRoomsHave) {
  write("d0#1", R"({"ns":1,"at":"granted","room":1,"binding":1,"pages":[3]}
{"ns":2,"at":"granted","room":2,"binding":1,"pages":[3]}
)");
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, AFreePageThatWasWrittenTo) {
  write("d0#1", R"({"ns":1,"at":"spoiled","page":3,"bytes":64})"
                "\n");
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, ASuccessWithWrongBytes) {
  write("d0#1", R"({"ns":1,"at":"end","room":1,"binding":1,"status":"Success","wrong_bytes":8})"
                "\n");
  EXPECT_THAT(invariants(), ElementsAre("I2"));
}

TEST_F(CheckerTest, ARoomThatEndsTwiceOrLate) {
  const std::string end =
      R"({"ns":1,"at":"end","room":1,"binding":1,"status":"Success","after_ms":50})"
      "\n";
  write("d0#1", end);
  EXPECT_THAT(invariants(40), ElementsAre("I3"));
  EXPECT_THAT(invariants(60), IsEmpty());
  write("d0#1", end + end);
  EXPECT_THAT(invariants(), ElementsAre("I3"));
}

TEST_F(CheckerTest, AFailureWithoutCauseOrWithTwo) {
  write("d0#1", R"({"ns":1,"at":"end","room":1,"binding":1,"status":"Failed","code":"","what":""})"
                "\n");
  EXPECT_THAT(invariants(), ElementsAre("I6"));
  write("d0#1", R"({"ns":1,"at":"end","room":1,"binding":1,"status":"Failed","code":"aborted",)"
                R"("what":"by the caller"})"
                "\n");
  write("p0#1", R"({"ns":1,"at":"end","room":1,"binding":1,"status":"Failed","code":"aborted",)"
                R"("what":"by decode"})"
                "\n");
  EXPECT_THAT(invariants(), IsEmpty());
  write("p0#1", R"({"ns":1,"at":"end","room":1,"binding":1,"status":"Failed","code":"peer-lost",)"
                R"("what":"nothing heard"})"
                "\n");
  EXPECT_THAT(invariants(), ElementsAre("I6"));
}

std::string end_of(std::int64_t ns, const std::string& status, const std::string& code = "") {
  return R"({"ns":)" + std::to_string(ns) + R"(,"at":"end","room":1,"binding":1,"status":")" +
         status + (code.empty() ? "\"}" : R"(","code":")" + code + R"(","what":"why"})") + "\n";
}

// Whichever of them is read first.
TEST_F(CheckerTest, AnotherCauseAtTheThirdParticipant) {
  write("d0#1", end_of(1, "Success"));
  write("d1#1", end_of(1, "Failed", "aborted"));
  write("p0#1", end_of(1, "Failed", "aborted"));
  EXPECT_THAT(invariants(), IsEmpty());
  write("p0#1", end_of(1, "Failed", "room-timeout"));
  EXPECT_THAT(invariants(), ElementsAre("I6"));
}

TEST_F(CheckerTest, ARoomThatSpansParticipantsEndsAtEachOfThemAndTogether) {
  constexpr std::int64_t kMs = 1'000'000;
  write("d0#1", end_of(1 * kMs, "Failed", "aborted"));
  write("p0#1", end_of(31 * kMs, "Failed", "aborted"));
  const auto verdict = check_journals(journals_, 0);
  ASSERT_TRUE(verdict);
  EXPECT_THAT(judge_span(*verdict, 1, 1, {"d0#1", "p0#1"}, 40), IsEmpty());
  EXPECT_THAT(judge_span(*verdict, 1, 1, {"d0#1", "p0#1"}, 0), IsEmpty());
  EXPECT_EQ(judge_span(*verdict, 1, 1, {"d0#1", "p0#1"}, 20).size(), 1U);
  EXPECT_EQ(judge_span(*verdict, 1, 1, {"d0#1", "p0#1", "p1#1"}, 40).size(), 1U);
  EXPECT_EQ(judge_span(*verdict, 2, 1, {"d0#1", "p0#1"}, 40).size(), 2U) << "it never was";
}

// With more regions than keys and values of one layer, as the life says at its start.
TEST_F(CheckerTest, RegionsOfAllLayersHavePages) {
  const std::string late = R"({"ns":200000000,"at":"landed","session":9,"slot":0,"generation":1,)"
                           R"("region":3,"page":3,"offset":0,"bytes":8})"
                           "\n";
  write("d0#1", std::string(kSound) + late);
  EXPECT_THAT(invariants(), IsEmpty()) << "it is aux";
  write("d0#1", R"({"ns":1,"at":"start","role":"decode","instance":"d","components":4})"
                "\n" +
                    std::string(kSound) + late);
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, MessagesOfAFormerLife) {
  write("p0#2", R"({"ns":1,"at":"message","way":"in","kind":"hello","session":0}
{"ns":2,"at":"message","way":"out","kind":"hello_reply","session":0,"opens":7}
{"ns":3,"at":"message","way":"in","kind":"grant","session":7}
)");
  EXPECT_EQ(check_journals(journals_, 0)->foreign_messages, 0U);
  write("p0#3", R"({"ns":1,"at":"message","way":"in","kind":"grant","session":7})"
                "\n");
  EXPECT_EQ(check_journals(journals_, 0)->foreign_messages, 1U);
}

// A process that was killed may leave its last line half.
TEST_F(CheckerTest, ALineThatIsNoJson) {
  write("d0#1", std::string(kSound) + R"({"ns":160,"at":"ret)");
  EXPECT_THAT(invariants(), IsEmpty());
  write("d0#1", R"({"ns":160,"at":"ret)"
                "\n" +
                    std::string(kSound));
  EXPECT_THAT(invariants(), ElementsAre(HasSubstr("unreadable")));
}

TEST(Census, WhatIsNotAsBefore) {
  const Census before{64, 10, 30, 0};
  EXPECT_THAT(compare("d0", before, before), IsEmpty());
  EXPECT_THAT(compare("d0", before, Census{64, 9, 20, 0}), IsEmpty());
  for (const Census& after : {Census{63, 10, 30, 0}, Census{64, 11, 30, 0}, Census{64, 10, 31, 0},
                              Census{64, 10, 30, 1}}) {
    EXPECT_EQ(compare("d0", before, after).size(), 1U);
  }
}

TEST(CallBounds, LongCallsAreFindings) {
  EXPECT_THAT(judge("d0", {1, 2, "poll_many", 1'000}), IsEmpty());
  EXPECT_EQ(judge("d0", {25, 30, "poll_many", 1'000}).size(), 1U);
  EXPECT_EQ(judge("d0", {1, 60, "abort", 1'000}).size(), 1U);
  EXPECT_THAT(judge("d0", {25, 60, "abort", 1'000}, 10), IsEmpty());
  EXPECT_EQ(judge("d0", {25, 600, "abort", 1'000}, 10).size(), 1U);
}

TEST(CallBounds, ACallThatHangsCounts) {
  const auto status = router::JsonDocument::parse(
      R"({"calls":{"calls":5,"p999_ms":1,"max_ms":2,"slowest":"open","running_ms":900,"running":"abort"}})");
  const CallBounds bounds = call_bounds_of(status->root());
  EXPECT_EQ(bounds.max_ms, 900);
  EXPECT_THAT(bounds.slowest, HasSubstr("abort"));
}

}  // namespace
}  // namespace kvferry::lab
