#include "lab/mutant_hunt.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "never.h"

namespace kvferry::lab {
namespace {

SimSettings settings_for(const char* names) {
  SimSettings settings;
  settings.jobs = 4;
  settings.max_seeds = 50;
  settings.mutants = *select_mutants(names, 1);
  return settings;
}

// no-claim is noticed by the seventh seed, ack-early by the first, no-tombstone throws, the others
// live.
sim::RunResult fake_run(const sim::RunOptions& options) {
  sim::RunResult result;
  const bool is_noticed = options.missing.core == core::Guard::kDrainedAfterSettled ||
                          (options.missing.model == sim::ModelGuard::kClaim && options.seed >= 7);
  if (is_noticed) result.violation = sim::Violation{"S1", "late", 1, Instant{}};
  if (options.missing.core == core::Guard::kTombstone) throw std::runtime_error("broken");
  return result;
}

TEST(MutantHunt, CountsTheSeedsToKill) {
  const HuntResult result =
      hunt_mutants(settings_for("no-claim,ack-early,no-tombstone"), fake_run, never, nullptr);
  ASSERT_EQ(result.rows.size(), 3U);
  EXPECT_EQ(result.rows[0].seeds, 7U);
  EXPECT_EQ(result.rows[0].killer, 7U);
  EXPECT_EQ(result.rows[0].invariant, "S1");
  EXPECT_EQ(result.rows[1].seeds, 1U);
  EXPECT_EQ(result.rows[2].invariant, "crash");
  EXPECT_EQ(result.median(), 1U);
  EXPECT_EQ(result.worst(), 7U);
  EXPECT_EQ(result.problem(true), "");
  EXPECT_EQ(hunt_json_rows(result)[0].rfind("{\"name\":\"no-claim\",\"killed\":true,"
                                            "\"seeds_to_kill\":7,",
                                            0),
            0U)
      << hunt_json_rows(result)[0];
}

TEST(MutantHunt, ASeedThatFailsAnywayKillsNothing) {
  const HuntResult result = hunt_mutants(
      settings_for("ack-early"),
      [](const sim::RunOptions& options) {
        sim::RunResult out = fake_run(options);
        if (options.seed == 1) out.violation = sim::Violation{"L1", "broken", 1, Instant{}};
        return out;
      },
      never, nullptr);
  ASSERT_EQ(result.rows.size(), 1U);
  EXPECT_EQ(result.rows[0].killer, 2U);
  EXPECT_EQ(result.problem(false), "seed 0x0000000000000001 fails without any mutant");
}

TEST(MutantHunt, ASurvivorIsAProblem) {
  const HuntResult result =
      hunt_mutants(settings_for("ack-early,stale-timer"), fake_run, never, nullptr);
  ASSERT_EQ(result.survivors().size(), 1U);
  EXPECT_EQ(result.problem(false), "not noticed: stale-timer");
  EXPECT_EQ(result.rows[1].seeds, 50U);
  EXPECT_NE(hunt_table(result).find("NOTHING"), std::string::npos);
}

TEST(MutantHunt, ASlowMedianIsAProblemOfTheWhole) {
  HuntResult result;
  result.rows.push_back(HuntedMutant{Mutant{}, kMedianLimit + 1, true, 1, "S1", {}});
  EXPECT_NE(result.problem(true), "");
  EXPECT_EQ(result.problem(false), "");
}

TEST(MutantHunt, OneThatWasCutOffIsNoSurvivor) {
  std::atomic<std::uint64_t> runs = 0;
  const HuntResult result = hunt_mutants(
      settings_for("stale-timer,ack-early"),
      [&](const sim::RunOptions& options) {
        ++runs;
        return fake_run(options);
      },
      [&] { return runs >= 10; }, nullptr);
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.survivors().empty());
  EXPECT_EQ(result.problem(true), "interrupted");
}

}  // namespace
}  // namespace kvferry::lab
