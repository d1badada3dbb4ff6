// The small parts of the core, each alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/prng.h"
#include "core/ended_rooms.h"
#include "core/slot_allocator.h"
#include "core/timer_queue.h"
#include "core/tombstones.h"
#include "core/write_tracker.h"

namespace kvferry::core {
namespace {

Instant at(int ms) { return Instant(milliseconds(ms)); }

TEST(TimerQueueAlone, GivesKeysInTheOrderOfTheirDeadlines) {
  TimerQueue<int> timers;
  EXPECT_EQ(timers.next(), Instant::max());
  timers.set(1, at(30));
  timers.set(2, at(10));
  timers.set(1, at(20));  // Set again: the old deadline is gone.
  EXPECT_EQ(timers.size(), 2U);
  EXPECT_EQ(timers.next(), at(10));
  EXPECT_FALSE(timers.pop_due(at(9)));
  EXPECT_EQ(timers.pop_due(at(30)), 2);
  EXPECT_EQ(timers.pop_due(at(30)), 1);
  EXPECT_FALSE(timers.pop_due(at(30)));
  timers.set(3, at(1));
  timers.cancel(3);
  timers.cancel(3);
  EXPECT_FALSE(timers.is_set(3));
  EXPECT_EQ(timers.next(), Instant::max());
}

TEST(TimerQueueAlone, ManyChangesLeaveOneDeadlineForEachKey) {
  TimerQueue<int> timers;
  std::map<int, int> wanted;
  Prng prng(5);
  for (int i = 0; i < 20'000; ++i) {
    const int key = static_cast<int>(prng.below(50));
    if (prng.below(4) == 0) {
      timers.cancel(key);
      wanted.erase(key);
    } else {
      wanted[key] = static_cast<int>(prng.below(1'000));
      timers.set(key, at(wanted[key]));
    }
  }
  EXPECT_EQ(timers.size(), wanted.size());
  std::vector<std::pair<int, int>> expected;
  for (const auto& [key, due] : wanted) expected.emplace_back(due, key);
  std::ranges::sort(expected);
  for (const auto& [due, key] : expected) {
    EXPECT_EQ(timers.next(), at(due));
    EXPECT_FALSE(timers.pop_due(at(due - 1)));
    EXPECT_EQ(timers.pop_due(at(due)), key);
  }
  EXPECT_EQ(timers.next(), Instant::max());
}

TEST(SlotAllocatorAlone, ReusesSlotsUnderNewGenerations) {
  SlotAllocator slots(2);
  const auto first = slots.take();
  const auto second = slots.take();
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->slot, second->slot);
  EXPECT_FALSE(slots.take()) << "the limit";
  slots.give_back(first->slot);
  const auto third = slots.take();
  ASSERT_TRUE(third);
  EXPECT_EQ(third->slot, first->slot);
  EXPECT_GT(third->generation, second->generation);
  EXPECT_EQ(slots.in_use(), 2U);
}

TEST(EndedRoomsAlone, ForgetsTheOldestFirstAndKeepsTheFirstCause) {
  EndedRooms ended(2);
  const auto key = [](std::uint64_t room) { return RoomKey{RoomId(room), Binding{0, room}}; };
  ended.add(key(1), Failure{FailureCode::kAborted, {}, "first", {}, -1});
  ended.add(key(1), Failure{FailureCode::kAborted, {}, "second", {}, -1});
  ASSERT_NE(ended.find(key(1)), nullptr);
  EXPECT_EQ(ended.find(key(1))->what, "first");
  ended.add(key(2), Failure{});
  ended.add(key(3), Failure{});
  EXPECT_EQ(ended.find(key(1)), nullptr);
  EXPECT_NE(ended.find(key(3)), nullptr);
  EXPECT_EQ(ended.size(), 2U);
  EndedRooms none(0);
  none.add(key(1), Failure{});
  EXPECT_EQ(none.size(), 0U);
}

TEST(TombstonesAlone, GoWithTheMarkWhichOnlyRises) {
  Tombstones tombstones(3);
  EXPECT_TRUE(tombstones.add(AttemptId(5), Tombstone{}));
  EXPECT_TRUE(tombstones.add(AttemptId(6), Tombstone{Failure{}}));
  tombstones.raise_mark(AttemptId(6));
  EXPECT_EQ(tombstones.find(AttemptId(5)), nullptr);
  EXPECT_NE(tombstones.find(AttemptId(6)), nullptr);
  tombstones.raise_mark(AttemptId(2));
  EXPECT_EQ(tombstones.mark(), AttemptId(6));
  EXPECT_TRUE(tombstones.is_below_mark(AttemptId(5)));
  EXPECT_TRUE(tombstones.add(AttemptId(5), Tombstone{})) << "what is below needs no memory";
  EXPECT_EQ(tombstones.size(), 1U);
}

TEST(TombstonesAlone, AttemptsInUseHaveTheirPlaceReserved) {
  Tombstones tombstones(3);
  EXPECT_FALSE(tombstones.is_full(2));
  tombstones.add(AttemptId(1), Tombstone{});
  EXPECT_TRUE(tombstones.is_full(2));
  tombstones.add(AttemptId(2), Tombstone{});
  tombstones.add(AttemptId(3), Tombstone{});
  EXPECT_FALSE(tombstones.add(AttemptId(4), Tombstone{}));
  EXPECT_TRUE(tombstones.add(AttemptId(3), Tombstone{Failure{}}));
  EXPECT_EQ(tombstones.size(), 3U);
}

TEST(WriteTrackerAlone, NeverGivesATicketTwice) {
  WriteTracker writes;
  const TicketId first = writes.next_ticket();
  TrackedWrite tracked;
  tracked.write.ticket = first;
  tracked.write.slot = GrantSlot(3);
  tracked.write.generation = Generation(4);
  writes.add(tracked);
  EXPECT_TRUE(writes.unknown_under(GrantSlot(3), Generation(4)).empty());
  writes.find(first)->unknown = true;
  EXPECT_EQ(writes.unknown_under(GrantSlot(3), Generation(4)).size(), 1U);
  EXPECT_TRUE(writes.unknown_under(GrantSlot(3), Generation(5)).empty());
  writes.settle(first);
  EXPECT_EQ(writes.find(first), nullptr);
  EXPECT_GT(writes.next_ticket(), first);
  EXPECT_TRUE(writes.has_risen());
  writes.add(tracked);
  EXPECT_FALSE(writes.has_risen()) << "the first ticket again";
}

}  // namespace
}  // namespace kvferry::core
