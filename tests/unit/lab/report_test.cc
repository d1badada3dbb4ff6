#include "sim/report.h"

#include <gtest/gtest.h>

namespace kvferry::sim {
namespace {

FailureReport sample() {
  FailureReport report;
  report.version = "commit=1a2b3c4";
  report.options.seed = 0x5d0c;
  report.result.violation =
      Violation{"S1", "landing outside grant: page=17", 8'411, Instant(milliseconds(1'482))};
  report.result.events = 9'030;
  report.result.fired_list = "crash, replay";
  report.result.profile_text = "stream, 40 rooms";
  return report;
}

TEST(Report, HasWhatAReplayNeeds) {
  FailureReport report = sample();
  report.shrunk = Shrunk{report.options, report.result, 12};
  report.shrunk->options.rooms = 2;
  report.shrunk->options.faults = *faults_from_list("crash,replay");
  report.shrunk->result.events = 37;
  EXPECT_EQ(
      to_text(report),
      "SIM FAILED  seed=0x0000000000005d0c commit=1a2b3c4 profile=swarm\n"
      "  invariant S1  landing outside grant: page=17\n"
      "  event 8,412 of 9,030, t=1.482 s;  faults on: crash, replay\n"
      "  world:   stream, 40 rooms\n"
      "  replay:  kvferry sim --seed 0x0000000000005d0c --until 8412 --log full\n"
      "  shrunk:  kvferry sim --seed 0x0000000000005d0c --rooms 2 --faults replay,crash   (37 "
      "events)\n");
}

TEST(Report, NamesTheMutant) {
  FailureReport report = sample();
  report.mutant = "ack-early";
  const std::string text = to_text(report);
  EXPECT_NE(text.find("profile=swarm mutant=ack-early\n"), std::string::npos) << text;
  EXPECT_NE(text.find("--mutant ack-early --until 8412 --log full\n"), std::string::npos) << text;
}

TEST(Report, ReplayRepeatsTheRestrictions) {
  RunOptions options;
  options.seed = 1;
  EXPECT_EQ(replay_command(options, ""), "kvferry sim --seed 0x0000000000000001");
  options.rooms = 4;
  options.faults.reset();
  EXPECT_EQ(replay_command(options, ""),
            "kvferry sim --seed 0x0000000000000001 --rooms 4 --faults none");
}

TEST(Report, FaultListsAreReadBack) {
  for (const FaultSet& faults :
       {FaultSet{}, FaultSet{}.set(), FaultSet{}.set(0).set(17).set(kFaultKinds - 1)}) {
    EXPECT_EQ(faults_from_list(fault_list(faults)), faults) << fault_list(faults);
  }
}

TEST(Report, GroupsDigits) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1'000), "1,000");
  EXPECT_EQ(grouped(12'345'678), "12,345,678");
}

}  // namespace
}  // namespace kvferry::sim
