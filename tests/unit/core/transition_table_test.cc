// The tables as stored, and nothing beside them.
#include "core/transition_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

namespace kvferry::core {
namespace {

TEST(TransitionTables, AreTheStoredOnes) {
  std::ifstream file(KVFERRY_CORE_GOLDEN_DIR "/transition_tables.txt");
  ASSERT_TRUE(file) << "golden/transition_tables.txt can't be read";
  std::stringstream stored;
  stored << file.rdbuf();
  EXPECT_EQ(print_transition_tables(), stored.str())
      << "A change of the tables is a change of the protocol: change the golden copy with it.";
}

template <typename State, typename Trigger, typename Table>
void expect_only_listed(const Table& table, int states, int triggers) {
  std::size_t listed = 0;
  for (int state = 0; state < states; ++state) {
    for (int trigger = 0; trigger < triggers; ++trigger) {
      const auto from = static_cast<State>(state);
      const auto by = static_cast<Trigger>(trigger);
      const auto rows = std::ranges::count_if(
          table, [&](const auto& row) { return row.from == from && row.trigger == by; });
      EXPECT_LE(rows, 1) << to_string(from) << " has two ways on " << to_string(by);
      EXPECT_EQ(next_state(from, by).has_value(), rows == 1);
      listed += static_cast<std::size_t>(rows);
    }
  }
  EXPECT_EQ(listed, table.size());
}

TEST(TransitionTables, AnythingElseLeadsNowhere) {
  expect_only_listed<KvPoll, RoomTrigger>(room_transitions(), 5, 4);
  expect_only_listed<GrantState, GrantTrigger>(grant_transitions(), 9, 8);
  expect_only_listed<TargetState, TargetTrigger>(target_transitions(), 6, 5);
}

TEST(TransitionTables, ANumberThatNamesNothingIsPrintedAsSuch) {
  EXPECT_EQ(to_string(static_cast<RoomTrigger>(99)), "?");
  EXPECT_EQ(to_string(static_cast<GrantState>(99)), "?");
  EXPECT_EQ(to_string(static_cast<GrantTrigger>(99)), "?");
  EXPECT_EQ(to_string(static_cast<TargetState>(99)), "?");
  EXPECT_EQ(to_string(static_cast<TargetTrigger>(99)), "?");
}

// Every row has names of its own, else the traces could not be told apart.
TEST(TransitionTables, NamesDiffer) {
  const auto expect_names = [](auto last) {
    std::set<std::string_view> names;
    for (int number = 0; number <= static_cast<int>(last); ++number) {
      names.insert(to_string(static_cast<decltype(last)>(number)));
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
    EXPECT_FALSE(names.contains("?"));
  };
  expect_names(RoomTrigger::kFailed);
  expect_names(GrantState::kFree);
  expect_names(GrantTrigger::kRelease);
  expect_names(TargetState::kDrained);
  expect_names(TargetTrigger::kSettled);
}

TEST(TransitionTables, AnEndIsAnEnd) {
  for (const KvPoll end : {KvPoll::kSuccess, KvPoll::kFailed}) {
    for (const RoomTrigger trigger : {RoomTrigger::kPeersReady, RoomTrigger::kStarted,
                                      RoomTrigger::kCompleted, RoomTrigger::kFailed}) {
      EXPECT_FALSE(next_state(end, trigger));
    }
  }
}

// S1: with a local fence no way from granted pages to the caller misses it.
TEST(TransitionTables, GrantedPagesAreFencedQuietOrTornDownBeforeTheyLeave) {
  for (const GrantTransition& row : grant_transitions()) {
    if (row.to == GrantState::kConsumed || row.to == GrantState::kFree) {
      EXPECT_TRUE(row.from == GrantState::kFenced || row.from == GrantState::kQuiet ||
                  row.from == GrantState::kTornDown || row.from == GrantState::kNone);
    }
  }
  // Rule 5: no way leads from giving up to Done.
  for (const TargetTransition& row : target_transitions()) {
    if (row.to == TargetState::kDone || row.to == TargetState::kConsumed) {
      EXPECT_TRUE(row.from == TargetState::kPosting || row.from == TargetState::kDone);
    }
  }
}

}  // namespace
}  // namespace kvferry::core
