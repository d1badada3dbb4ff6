#include "sim/transition_cells.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "core/transition_table.h"

namespace kvferry::sim {
namespace {

TEST(TransitionCells, EachRowOfTheTablesIsOneCell) {
  const std::vector<TransitionCell> cells = transition_cells();
  EXPECT_EQ(cells.size(), 2 * core::room_transitions().size() + core::grant_transitions().size() +
                              core::target_transitions().size());
  std::set<std::string> names;
  for (const TransitionCell& cell : cells) names.insert(to_string(cell));
  EXPECT_EQ(names.size(), cells.size());
  EXPECT_TRUE(names.contains("grant: covered --fence-done--> fenced"));
}

TEST(TransitionCells, AHitCountsForItsCellAlone) {
  const std::vector<TransitionCell> cells = transition_cells();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    CellCounts counts;
    counts.hit(cells[i].machine, cells[i].from, cells[i].trigger);
    EXPECT_EQ(counts.counts()[i], 1U) << to_string(cells[i]);
    EXPECT_EQ(std::accumulate(counts.counts().begin(), counts.counts().end(), 0U), 1U);
  }
}

TEST(TransitionCells, WhatIsInNoTableIsCountedApart) {
  CellCounts counts;
  counts.hit(Machine::kGrant, static_cast<std::uint8_t>(core::GrantState::kFree),
             static_cast<std::uint8_t>(core::GrantTrigger::kRevoke));
  counts.hit(Machine::kTarget, 200, 200);
  EXPECT_EQ(counts.counts().back(), 2U);
}

}  // namespace
}  // namespace kvferry::sim
