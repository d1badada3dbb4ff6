// The options of `kvferry sim`, checked and in the simulator's words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/settings.h"
#include "lab/mutants.h"
#include "lab/seeds.h"
#include "sim/simulation.h"

namespace kvferry::lab {

class SimSettings {
 public:
  SimSettings();

  void declare(cli::Settings& settings);
  // What depends on more than one option; after it the members below hold.
  Status check();

  enum class Mode : std::uint8_t { kSeeds, kCanary, kMutants, kRegressions };
  Mode mode = Mode::kSeeds;
  SeedSequence sequence{1};
  std::uint64_t seeds = 1'000;  // 1 with --seed
  bool is_single = false;       // --seed
  sim::RunOptions run;          // its seed is the first one
  std::string mutant;           // --mutant
  std::vector<Mutant> mutants;  // --mutants
  bool hunts_all_mutants = false;

  std::uint32_t jobs = 1;
  std::uint32_t check_twice_percent = 5;
  std::uint64_t max_failures = 10;
  std::uint64_t max_seeds = 5'000;
  bool coverage_gate = false;
  std::string regressions;  // a file
  std::string failure_dir;
  std::string version;  // "commit=1a2b3c4", else "version=0.1.0"
  std::string json;

 private:
  Status check_modes();
  Status check_seeds();
  Status check_run();

  std::string from_ = "1";
  std::string seed_;
  std::string until_;
  std::uint32_t rooms_ = 0;  // 0: as the profile has it
  std::string faults_ = "all";
  std::string log_ = "none";
  std::string mutants_;
  std::string commit_;
  bool canary_ = false;
  bool fail_fast_ = false;
};

}  // namespace kvferry::lab
