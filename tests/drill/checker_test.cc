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

// Room 1 is granted page 3 under grant 4 and written to by session 9, and fails.
constexpr const char* kGrantedLine = R"({"ns":100,"at":"granted","room":1,"binding":1,"pages":[3]}
{"ns":110,"at":"slot","session":9,"slot":0,"generation":1,"page":3,"grant":4}
)";
constexpr const char* kFencedLine = R"({"ns":130,"at":"fenced","grant":4}
)";
constexpr const char* kReturnedLine = R"({"ns":140,"at":"returned","room":1,"binding":1,"pages":[3]}
)";
std::string drained(std::int64_t ns, const std::string& way, std::int64_t number) {
  return R"({"ns":)" + std::to_string(ns) + R"(,"at":"message","way":")" + way +
         R"(","kind":"drained","session":9,"number":)" + std::to_string(number) +
         R"(,"slot":0,"generation":1})" + "\n";
}

TEST_F(CheckerTest, GrantedPagesComeBackThroughTheirFence) {
  write("d0#1", std::string(kGrantedLine) + kFencedLine + kReturnedLine);
  EXPECT_THAT(invariants(), IsEmpty());
  write("d0#1", std::string(kGrantedLine) + kReturnedLine + kFencedLine);
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, PagesThatHoldWhatIsNotTheirSenders) {
  write("d0#1", std::string(kGrantedLine) + kFencedLine +
                    R"({"ns":140,"at":"returned","room":1,"binding":1,"pages":[3],"foreign":8})"
                    "\n");
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

// Of page 5, which room 1 has at its writer.
std::string source(std::string_view then, std::int64_t hold_ms = 1'000) {
  return R"({"ns":1,"at":"start","role":"prefill","instance":"p","components":2,)"
         R"("source_hold_ms":)" +
         std::to_string(hold_ms) + R"(,"messages":true}
{"ns":100,"at":"granted","room":1,"binding":1,"pages":[5]}
{"ns":110,"at":"posted","session":9,"slot":0,"generation":1,"writes":2,"pages":[5]}
{"ns":120,"at":"end","room":1,"binding":1,"status":"Failed","code":"aborted","what":"by decode"}
)" + std::string(then);
}
constexpr const char* kSourceReturnedLine =
    R"({"ns":140,"at":"returned","room":1,"binding":1,"pages":[5]}
)";
std::string written(int settled, int unknown, int quiet) {
  return R"({"ns":130,"at":"written","session":9,"slot":0,"generation":1,"settled":)" +
         std::to_string(settled) + R"(,"unknown":)" + std::to_string(unknown) + R"(,"quiet":)" +
         std::to_string(quiet) + "}\n";
}
constexpr const char* kFencedHeardLine =
    R"({"ns":135,"at":"message","way":"in","kind":"fenced","session":9,"slot":0,"generation":1}
)";

TEST_F(CheckerTest, SourcePagesComeBackWhenNothingReadsThem) {
  for (const std::string& then :
       {written(2, 0, 0), written(1, 1, 0) + written(0, 0, 1), std::string(kFencedHeardLine)}) {
    write("p0#1", source(then + kSourceReturnedLine));
    EXPECT_THAT(invariants(), IsEmpty()) << then;
  }
  for (const std::string& then : {std::string(), written(1, 0, 0), written(1, 1, 0)}) {
    write("p0#1", source(then + kSourceReturnedLine));
    EXPECT_THAT(invariants(), ElementsAre("I1")) << then;
  }
}

// The core may post once more what was refused before it comes to the word of the fence.
TEST_F(CheckerTest, AFenceThatWasHeardHoldsForWhatIsPostedLater) {
  write("p0#1", source(kFencedHeardLine + written(2, 0, 0) +
                       R"({"ns":136,"at":"posted","session":9,"slot":0,"generation":1,)"
                       R"("writes":1,"pages":[5]})"
                       "\n" +
                       kSourceReturnedLine));
  EXPECT_THAT(invariants(), IsEmpty());
}

// Who keeps no messages can't tell whether a fence was heard of.
TEST_F(CheckerTest, SourcePagesAreJudgedWhereMessagesAreKept) {
  std::string journal = source(kSourceReturnedLine);
  journal.replace(journal.find("true"), 4, "false");
  write("p0#1", journal);
  EXPECT_THAT(invariants(), IsEmpty());
}

// The word of another grant's fence says nothing of this one, and one that was held back nothing
// yet.
TEST_F(CheckerTest, TheFenceIsThatOfTheGrantAndWasHeard) {
  for (
      const char* heard :
      {R"({"ns":135,"at":"message","way":"in","kind":"fenced","session":9,"slot":1,"generation":1})",
       R"({"ns":135,"at":"message","way":"in","kind":"fenced","session":9,"slot":0,"generation":1,)"
       R"("fate":"held"})"}) {
    write("p0#1", source(std::string(heard) + "\n" + kSourceReturnedLine));
    EXPECT_THAT(invariants(), ElementsAre("I1")) << heard;
  }
}

TEST_F(CheckerTest, SourcePagesThatAreGivenUpComeBackLongAfterTheEnd) {
  const std::string late = R"({"ns":1000000140,"at":"returned","room":1,"binding":1,"pages":[5]})"
                           "\n";
  write("p0#1", source(late));
  EXPECT_THAT(invariants(), IsEmpty());
  write("p0#1", source(late, 2'000));
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, AWriteThatReadsAFreePage) {
  write("p0#1", source(written(2, 0, 0) + kSourceReturnedLine +
                       R"({"ns":150,"at":"posted","session":9,"slot":0,"generation":2,)"
                       R"("writes":1,"pages":[5]})"
                       "\n"));
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, AWriterSaysThatItIsQuietOnceItIs) {
  for (const std::string& before :
       {written(2, 0, 0), written(1, 1, 0) + kFencedHeardLine, written(1, 1, 1)}) {
    write("p0#1", source(before + drained(140, "out", 7)));
    EXPECT_THAT(invariants(), IsEmpty()) << before;
  }
  // The fence ends what is unknown, and not what runs.
  for (const std::string& before :
       {written(1, 0, 0), written(1, 1, 0), std::string(kFencedHeardLine)}) {
    write("p0#1", source(before + drained(140, "out", 7)));
    EXPECT_THAT(invariants(), ElementsAre("I1")) << before;
  }
}

TEST_F(CheckerTest, NothingLandsOnceItsWriterIsQuiet) {
  const std::string landed =
      R"({"ns":125,"at":"landed","session":9,"slot":0,"generation":1,"region":0,"page":3,)"
      R"("offset":0,"bytes":8})"
      "\n";
  write("d0#1", kGrantedLine + landed);
  write("p0#1", source(written(2, 0, 0) + drained(140, "out", 7)));
  EXPECT_THAT(invariants(), IsEmpty());
  write("p0#1", source(written(2, 0, 0) + drained(120, "out", 7)));
  EXPECT_THAT(invariants(), ElementsAre("I1"));
}

TEST_F(CheckerTest, EachWriterSaysItOnce) {
  const auto judged = [this](const std::string& heard) {
    write("d0#1", std::string(kGrantedLine) + kFencedLine + kReturnedLine + heard);
    write("p0#1", source(written(2, 0, 0)));
    const auto verdict = check_journals(journals_, 0);
    return verdict ? judge_drained(*verdict, 1, 1, {"d0#1"}, 1).size() : 99;
  };
  EXPECT_EQ(judged(drained(150, "in", 7)), 0U);
  EXPECT_EQ(judged(drained(150, "in", 7) + drained(160, "in", 7)), 0U) << "said again";
  EXPECT_EQ(judged(drained(150, "in", 7) + drained(160, "in", 8)), 1U) << "said twice";
  EXPECT_EQ(judged(""), 1U);
  const auto verdict = check_journals(journals_, 0);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(judge_drained(*verdict, 1, 1, {"d0#1"}, 2).size(), 1U);
  EXPECT_THAT(judge_drained(*verdict, 1, 1, {"d1#1"}, 1), IsEmpty()) << "it granted nothing";
  // Of its own accord, and in answer to decode's Abort.
  const std::string abort =
      R"({"ns":145,"at":"message","way":"in","kind":"abort","session":9,"slot":0,"generation":1})"
      "\n";
  const std::string twice = drained(150, "in", 7) + drained(160, "in", 8);
  for (const auto& [heard, findings] :
       {std::pair{twice, 0U}, std::pair{twice + drained(170, "in", 9), 1U}}) {
    write("d0#1", std::string(kGrantedLine) + kFencedLine + kReturnedLine + heard);
    write("p0#1", source(abort + written(2, 0, 0)));
    const auto again = check_journals(journals_, 0);
    EXPECT_EQ(judge_drained(*again, 1, 1, {"d0#1"}, 1).size(), findings) << heard;
  }
  const auto& records = verdict->writers.at({1, 1});
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].writer, "p0#1");
  EXPECT_EQ(records[0].posted, 2);
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
