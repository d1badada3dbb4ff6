// The small parts of the core, each alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "core/ended_rooms.h"
#include "core/number_map.h"
#include "core/rising_set.h"
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
  struct Wanted {
    int due;
    int set;  // the earlier first at one instant
  };
  std::map<int, Wanted> wanted;
  Prng prng(5);
  for (int i = 0; i < 20'000; ++i) {
    const int key = static_cast<int>(prng.below(50));
    if (prng.below(4) == 0) {
      timers.cancel(key);
      wanted.erase(key);
    } else {
      wanted[key] = {static_cast<int>(prng.below(1'000)), i};
      timers.set(key, at(wanted[key].due));
    }
  }
  EXPECT_EQ(timers.size(), wanted.size());
  std::vector<std::tuple<int, int, int>> expected;
  for (const auto& [key, each] : wanted) expected.emplace_back(each.due, each.set, key);
  std::ranges::sort(expected);
  for (const auto& [due, set, key] : expected) {
    EXPECT_EQ(timers.next(), at(due));
    EXPECT_FALSE(timers.pop_due(at(due - 1)));
    EXPECT_EQ(timers.pop_due(at(due)), key);
  }
  EXPECT_EQ(timers.next(), Instant::max());
}

// As rooms use it: time goes on, a few lengths, most deadlines replaced or cancelled before they
// fall due. Judged against a queue that looks at everything.
TEST(TimerQueueAlone, FewLengthsWhileTimeGoesOn) {
  TimerQueue<int> timers;
  std::map<int, std::pair<int, int>> wanted;  // key: due, set
  Prng prng(6);
  constexpr std::array kLengths = {7, 30, 75, 250, 251};
  for (int now = 0; now < 20'000; ++now) {
    const int key = static_cast<int>(prng.below(200));
    if (prng.below(3) == 0) {
      timers.cancel(key);
      wanted.erase(key);
    } else {
      wanted[key] = {now + kLengths[prng.below(kLengths.size())], now};
      timers.set(key, at(wanted[key].first));
    }
    const auto first =
        std::ranges::min_element(wanted, {}, [](const auto& each) { return each.second; });
    ASSERT_EQ(timers.next(), first == wanted.end() ? Instant::max() : at(first->second.first));
    if (first != wanted.end() && first->second.first <= now) {
      ASSERT_EQ(timers.pop_due(at(now)), first->first);
      wanted.erase(first);
    } else {
      ASSERT_FALSE(timers.pop_due(at(now)));
    }
  }
  ASSERT_EQ(timers.size(), wanted.size());
}

TEST(RisingSetAlone, KnowsItsLeastMember) {
  RisingSet<int> numbers;
  std::set<int> dumb;
  Prng prng(7);
  for (int i = 0; i < 20'000; ++i) {
    // Mostly the next one, now and then one that left before; many leave, one stays for long.
    const int number =
        prng.below(8) == 0 ? static_cast<int>(prng.below(static_cast<std::uint64_t>(i) + 1)) : i;
    numbers.insert(number);
    dumb.insert(number);
    for (int leaving = 0; leaving < 2; ++leaving) {
      const int gone = i - static_cast<int>(prng.below(300));
      if (gone % 5'000 == 17) continue;
      numbers.erase(gone);
      dumb.erase(gone);
    }
    ASSERT_EQ(numbers.size(), dumb.size());
    ASSERT_EQ(numbers.empty(), dumb.empty());
    if (!dumb.empty()) {
      ASSERT_EQ(numbers.least(), *dumb.begin());
    }
  }
}

TEST(NumberMapAlone, HoldsWhatAPlainMapHolds) {
  NumberMap<TicketId, int> numbers;
  std::map<TicketId, int> plain;
  Prng prng(8);
  std::uint64_t next = 0;
  for (int i = 0; i < 20'000; ++i) {
    // In order, with leaps as when other sessions draw from the same counter; some stay for ever.
    next += prng.below(16) == 0 ? prng.below(5'000) : 1;
    numbers.emplace(TicketId(next), i);
    plain.emplace(TicketId(next), i);
    numbers.emplace(TicketId(next), -1);
    EXPECT_EQ(*numbers.find(TicketId(next)), i) << "the first value stays";
    const TicketId gone(next - prng.below(next < 400 ? next : 400));
    if (gone.value() % 1'024 != 5) {
      numbers.erase(gone);
      plain.erase(gone);
    }
    ASSERT_EQ(numbers.size(), plain.size());
    ASSERT_EQ(numbers.contains(gone), plain.contains(gone));
  }
  EXPECT_FALSE(numbers.contains(TicketId{}));
  numbers.emplace(TicketId{}, -2);
  EXPECT_EQ(numbers.emplace(TicketId{}, -3), -2) << "0 is a number like any other";
  EXPECT_EQ(numbers.size(), plain.size() + 1);
  numbers.erase(TicketId{});
  EXPECT_FALSE(numbers.contains(TicketId{}));
  EXPECT_EQ(numbers.size(), plain.size());
  std::map<TicketId, int> seen;
  numbers.for_each([&](TicketId number, int value) { seen.emplace(number, value); });
  EXPECT_EQ(seen, plain);
  std::size_t some = 0;
  numbers.for_some(7, [&](TicketId, int) { ++some; });
  EXPECT_EQ(some, 7U);
  for (const auto& [number, value] : plain) {
    ASSERT_EQ(*numbers.find(number), value);
    numbers.erase(number);
  }
  EXPECT_TRUE(numbers.empty());
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
  EXPECT_TRUE(tombstones.add(AttemptId(5), std::nullopt));
  EXPECT_TRUE(tombstones.add(AttemptId(6), Failure{}));
  tombstones.raise_mark(AttemptId(6));
  EXPECT_EQ(tombstones.find(AttemptId(5)), nullptr);
  EXPECT_NE(tombstones.find(AttemptId(6)), nullptr);
  tombstones.raise_mark(AttemptId(2));
  EXPECT_EQ(tombstones.mark(), AttemptId(6));
  EXPECT_TRUE(tombstones.is_below_mark(AttemptId(5)));
  EXPECT_TRUE(tombstones.add(AttemptId(5), std::nullopt)) << "what is below needs no memory";
  EXPECT_EQ(tombstones.size(), 1U);
}

TEST(TombstonesAlone, AttemptsInUseHaveTheirPlaceReserved) {
  Tombstones tombstones(3);
  EXPECT_FALSE(tombstones.is_full(2));
  tombstones.add(AttemptId(1), std::nullopt);
  EXPECT_TRUE(tombstones.is_full(2));
  tombstones.add(AttemptId(2), std::nullopt);
  tombstones.add(AttemptId(3), std::nullopt);
  EXPECT_FALSE(tombstones.add(AttemptId(4), std::nullopt));
  EXPECT_TRUE(tombstones.add(AttemptId(3), Failure{}));
  EXPECT_EQ(tombstones.size(), 3U);
  EXPECT_TRUE(tombstones.may_be_over(AttemptId(4)));
  tombstones.raise_mark(AttemptId(4));
  EXPECT_TRUE(tombstones.may_be_over(AttemptId(4))) << "though there is place again";
  EXPECT_FALSE(tombstones.may_be_over(AttemptId(5)));
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
