// What many runs together have seen: the proof that they were not vacuous. Every kind of fault must
// have fired, rooms must have succeeded and failed under faults, and every transition of the core's
// tables must have been taken.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace kvferry::lab {

class Tally {
 public:
  Tally();

  void add(const sim::RunResult& result);

  std::uint64_t seeds() const { return seeds_; }
  std::uint64_t events() const { return events_; }
  // Of all traces, in order: equal for equal seeds, whatever the number of threads.
  std::uint64_t hash() const { return hash_; }

  // What is short of its goal, one sentence each; empty when nothing is. The goals: each kind of
  // fault in 1 % of the seeds; 30 % of the rooms in seeds with faults succeed, 30 % fail; each cell
  // 100 times in 20,000 seeds, those outside the tables never.
  std::vector<std::string> shortfalls() const;
  std::string table() const;
  // {"kind": "fault" | "rooms" | "cell", "name", ...}
  std::vector<std::string> json_rows() const;

 private:
  struct Rooms {
    std::uint64_t succeeded = 0;
    std::uint64_t failed = 0;
    std::uint64_t unknown = 0;
    std::uint64_t all() const { return succeeded + failed + unknown; }
  };
  std::uint64_t wanted_hits() const;  // per cell
  std::string cell_name(std::size_t index) const;
  bool is_unlisted(std::size_t cell) const { return cell + 1 == cells_.size(); }
  double percent_of_seeds(std::uint64_t count) const;

  std::uint64_t seeds_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t hash_ = 0;
  std::array<std::uint64_t, sim::kFaultKinds> fired_in_{};  // seeds
  Rooms quiet_;                                             // of seeds in which no fault fired
  Rooms faulty_;
  std::vector<std::uint64_t> cells_;  // as sim::CellCounts counts them
};

}  // namespace kvferry::lab
