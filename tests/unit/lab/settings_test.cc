#include "lab/sim_settings.h"

#include <gtest/gtest.h>

#include <utility>

#include "lab/cmd_sim.h"

// The test's own; the binaries' stands in their main.cc.
std::string_view kvferry::cli::version() { return "0.0.0"; }

namespace kvferry::lab {
namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

class SimSettingsTest : public ::testing::Test {
 protected:
  // Empty when the options are fine together.
  std::string problem(const Words& words) {
    settings_ = SimSettings();
    cli::Settings options;
    settings_.declare(options);
    for (const auto& [name, value] : words) {
      const Status status = options.apply(name, value, cli::Source::kOption);
      if (!status) return status.error().what;
    }
    const Status status = settings_.check();
    return status ? "" : status.error().what;
  }

  SimSettings settings_;
};

TEST_F(SimSettingsTest, Defaults) {
  EXPECT_EQ(problem({}), "");
  EXPECT_EQ(settings_.mode, SimSettings::Mode::kSeeds);
  EXPECT_EQ(settings_.seeds, 1'000U);
  EXPECT_EQ(settings_.sequence.first(), 1U);
  EXPECT_EQ(settings_.check_twice_percent, 5U);
  EXPECT_TRUE(settings_.run.faults.all());
  EXPECT_FALSE(settings_.run.rooms);
  EXPECT_EQ(settings_.version, "version=0.0.0");
}

TEST_F(SimSettingsTest, OneSeedWithRestrictions) {
  EXPECT_EQ(problem({{"seed", "0x10"},
                     {"until", "512"},
                     {"rooms", "2"},
                     {"faults", "crash,replay"},
                     {"log", "full"},
                     {"jobs", "8"},
                     {"mutant", "no-claim"},
                     {"commit", "1a2b3c4d5e6f70819293"}}),
            "");
  EXPECT_EQ(settings_.seeds, 1U);
  EXPECT_EQ(settings_.run.seed, 16U);
  EXPECT_EQ(settings_.run.until_event, 512U);
  EXPECT_EQ(settings_.run.rooms, 2U);
  EXPECT_EQ(settings_.run.faults, *sim::faults_from_list("crash,replay"));
  EXPECT_EQ(settings_.run.log, sim::LogLevel::kFull);
  EXPECT_EQ(settings_.jobs, 1U) << "lines of two runs would mix";
  EXPECT_EQ(settings_.run.missing.model, sim::ModelGuard::kClaim);
  EXPECT_EQ(settings_.version, "commit=1a2b3c4d5e6f");
}

TEST_F(SimSettingsTest, MutantsWithAndWithoutNames) {
  EXPECT_EQ(problem({{"mutants", "true"}}), "") << "as --mutants alone";
  EXPECT_EQ(settings_.mode, SimSettings::Mode::kMutants);
  EXPECT_TRUE(settings_.hunts_all_mutants);
  EXPECT_EQ(settings_.mutants.size(), all_mutants().size());
  EXPECT_EQ(problem({{"mutants", "sample:5"}, {"from", "1a2b3c4d"}}), "");
  EXPECT_FALSE(settings_.hunts_all_mutants);
  EXPECT_EQ(settings_.mutants.size(), 5U);
}

TEST_F(SimSettingsTest, RefusesWhatMakesNoSenseTogether) {
  EXPECT_NE(problem({{"mutants", "all"}, {"canary", "true"}}).find("does not go with"),
            std::string::npos);
  EXPECT_NE(problem({{"coverage_gate", "true"}, {"faults", "none"}}).find("does not go with"),
            std::string::npos);
  EXPECT_NE(problem({{"until", "12"}}).find("needs --seed"), std::string::npos);
  EXPECT_NE(problem({{"seed", "1"}, {"until", "soon"}}).find("'soon'"), std::string::npos);
  EXPECT_NE(problem({{"seed", "seven"}}).find("option --seed: 'seven' is no seed"),
            std::string::npos);
  EXPECT_NE(problem({{"mutant", "all"}}).find("takes one name"), std::string::npos);
  EXPECT_NE(problem({{"mutant", "none-such"}}).find("option --mutant: 'none-such'"),
            std::string::npos);
}

TEST_F(SimSettingsTest, FailFastIsOneFailure) {
  EXPECT_EQ(problem({{"fail_fast", "true"}, {"max_failures", "7"}}), "");
  EXPECT_EQ(settings_.max_failures, 1U);
}

}  // namespace
}  // namespace kvferry::lab
