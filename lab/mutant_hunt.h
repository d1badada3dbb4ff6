// How many seeds it takes the simulator to notice each mutant: the measure of its strength.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/sim_settings.h"
#include "sim/shrink.h"

namespace kvferry::lab {

// Over all mutants; a sample is only asked whether all of it was noticed.
inline constexpr std::uint64_t kMedianLimit = 200;

struct HuntedMutant {
  Mutant mutant;
  std::uint64_t seeds = 0;  // run; the last one noticed it when it was killed
  bool killed = false;
  std::uint64_t killer = 0;  // that seed
  std::string invariant;     // by which it was noticed
  // A seed on the way that fails with every guard in place, too; such a one kills nothing.
  std::optional<std::uint64_t> broken_seed;
};

struct HuntResult {
  std::vector<HuntedMutant> rows;
  bool interrupted = false;

  std::vector<std::string> survivors() const;
  // Of seeds to kill; 0 when none was killed.
  std::uint64_t median() const;
  std::uint64_t worst() const;
  // Empty when the goals are met, else what is not.
  std::string problem(bool all_mutants) const;
};

// Each mutant gets the same seeds, one after the other, until one ends in a violation. stop is
// asked from several threads.
HuntResult hunt_mutants(const SimSettings& settings, const sim::RunSeed& run,
                        const std::function<bool()>& stop,
                        const std::function<void(std::size_t)>& report);

std::string hunt_table(const HuntResult& result);
std::vector<std::string> hunt_json_rows(const HuntResult& result);

}  // namespace kvferry::lab
