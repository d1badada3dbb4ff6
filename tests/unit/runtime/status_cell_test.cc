#include "runtime/status_cell.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

namespace kvferry::runtime {
namespace {

Failure aborted() { return {FailureCode::kAborted, FailureWhere::kLocal, "aborted", {}, 0}; }
Failure lost() { return {FailureCode::kPeerLost, FailureWhere::kPath, "lost", "peer", 1}; }

std::shared_ptr<StatusCell> receiver(StatusTable& table) {
  return table.open(HandleKind::kReceiver, RoomId(7), Binding{1, 2});
}

TEST(StatusCell, MovesForwardAndNeverBack) {
  StatusTable table(4);
  const auto cell = receiver(table);
  EXPECT_EQ(cell->load(), KvPoll::kBootstrapping);
  EXPECT_TRUE(cell->advance(KvPoll::kTransferring));
  EXPECT_FALSE(cell->advance(KvPoll::kWaitingForInput));
  EXPECT_FALSE(cell->advance(KvPoll::kTransferring));
  EXPECT_EQ(cell->load(), KvPoll::kTransferring);
  EXPECT_TRUE(cell->end(KvPoll::kFailed, lost()));
  EXPECT_FALSE(cell->advance(KvPoll::kTransferring));
  EXPECT_FALSE(cell->end(KvPoll::kSuccess, std::nullopt));
  EXPECT_FALSE(cell->end(KvPoll::kFailed, aborted()));
  EXPECT_EQ(cell->load(), KvPoll::kFailed);
  EXPECT_EQ(cell->failure(), lost());
}

TEST(StatusCell, AFirstReadOfSuccessTakesThePages) {
  StatusTable table(4);
  const auto read = receiver(table);
  ASSERT_TRUE(read->end(KvPoll::kSuccess, std::nullopt));
  EXPECT_EQ(read->read(), KvPoll::kSuccess);
  EXPECT_EQ(read->read(), KvPoll::kSuccess);
  const StatusCell::Cleared cleared = read->clear(aborted());
  EXPECT_TRUE(cleared.first);
  EXPECT_FALSE(cleared.ended);
  EXPECT_FALSE(cleared.unread_success);
  EXPECT_FALSE(read->failure().has_value());

  const auto unread = receiver(table);
  ASSERT_TRUE(unread->end(KvPoll::kSuccess, std::nullopt));
  EXPECT_EQ(unread->load(), KvPoll::kSuccess);  // a look that takes nothing
  EXPECT_TRUE(unread->clear(aborted()).unread_success);
  EXPECT_EQ(unread->read(), KvPoll::kFailed);
  EXPECT_FALSE(unread->clear(aborted()).first);
}

TEST(StatusCell, ReadingManyTakesThePagesToo) {
  StatusTable table(4);
  const auto cell = receiver(table);
  ASSERT_TRUE(cell->end(KvPoll::kSuccess, std::nullopt));
  const std::uint64_t ids[] = {cell->id, 0, 12'345};
  KvPoll statuses[3] = {KvPoll::kTransferring, KvPoll::kTransferring, KvPoll::kTransferring};
  table.read_many(ids, statuses);
  EXPECT_EQ(statuses[0], KvPoll::kSuccess);
  EXPECT_EQ(statuses[1], KvPoll::kFailed);
  EXPECT_EQ(statuses[2], KvPoll::kFailed);
  EXPECT_FALSE(cell->clear(aborted()).unread_success);
}

TEST(StatusCell, ASendersSuccessOwesNoPages) {
  StatusTable table(4);
  const auto cell = table.open(HandleKind::kSender, RoomId(7), Binding{1, 2});
  ASSERT_TRUE(cell->end(KvPoll::kSuccess, std::nullopt));
  EXPECT_FALSE(cell->clear(aborted()).unread_success);
}

TEST(StatusCell, ClearingALiveRoomEndsIt) {
  StatusTable table(4);
  const auto cell = receiver(table);
  const StatusCell::Cleared cleared = cell->clear(aborted());
  EXPECT_TRUE(cleared.first);
  EXPECT_TRUE(cleared.ended);
  EXPECT_FALSE(cell->end(KvPoll::kSuccess, std::nullopt));
  EXPECT_EQ(cell->failure(), aborted());
}

TEST(StatusTable, AnIdIsNeverReusedThoughItsPlaceIs) {
  StatusTable table(2);
  const auto first = receiver(table);
  std::uint64_t last = first->id;
  for (int i = 0; i < 100; ++i) {
    const auto next = receiver(table);
    EXPECT_GT(next->id, last);
    last = next->id;
    next->clear(aborted());
    table.release(next->id);
    EXPECT_EQ(table.find(next->id), nullptr);
    EXPECT_EQ(table.find_held(next->id), nullptr);
    EXPECT_EQ(table.read(next->id), KvPoll::kFailed);
    // A late word about the former owner reaches nobody.
    EXPECT_FALSE(next->end(KvPoll::kSuccess, std::nullopt));
  }
  EXPECT_EQ(first->load(), KvPoll::kBootstrapping);
  EXPECT_EQ(table.find(first->id), first);
  EXPECT_EQ(table.find_held(first->id), first.get());
  EXPECT_EQ(table.open_handles(), 1U);
}

TEST(StatusTable, WithoutAPlaceAHandleIsBornFailed) {
  StatusTable table(2);
  const auto a = receiver(table);
  const auto b = receiver(table);
  const auto refused = receiver(table);
  EXPECT_EQ(refused->load(), KvPoll::kFailed);
  ASSERT_TRUE(refused->failure().has_value());
  EXPECT_EQ(refused->failure()->code, FailureCode::kTableFull);
  EXPECT_EQ(table.find(refused->id), nullptr);
  table.release(a->id);
  EXPECT_EQ(receiver(table)->load(), KvPoll::kBootstrapping);
}

TEST(StatusTable, CountsWhatStartedAndHowItEnded) {
  StatusTable table(8);
  const auto a = receiver(table);
  const auto b = receiver(table);
  const auto c = receiver(table);
  a->end(KvPoll::kSuccess, std::nullopt);
  b->end(KvPoll::kFailed, lost());
  b->end(KvPoll::kFailed, lost());
  const RoomCounters& counters = table.counters();
  EXPECT_EQ(counters.started, 3U);
  EXPECT_EQ(counters.succeeded, 1U);
  EXPECT_EQ(counters.failed[static_cast<std::size_t>(FailureCode::kPeerLost)], 1U);
  table.fail_all(aborted());
  EXPECT_EQ(c->load(), KvPoll::kFailed);
  EXPECT_EQ(a->load(), KvPoll::kSuccess);
  EXPECT_EQ(counters.failed[static_cast<std::size_t>(FailureCode::kAborted)], 1U);
}

// The caller's abort, the core's success and the core's failure race for one cell: one of them
// wins, everybody sees the same end, and the text is the winner's.
TEST(StatusCellRace, OneEndWins) {
  StatusTable table(4);
  for (int round = 0; round < 500; ++round) {
    const auto cell = receiver(table);
    std::latch start(4);
    bool won[3] = {false, false, false};
    KvPoll seen = KvPoll::kBootstrapping;
    std::optional<Failure> text;
    std::thread success([&] {
      start.arrive_and_wait();
      won[0] = cell->end(KvPoll::kSuccess, std::nullopt);
    });
    std::thread abort([&] {
      start.arrive_and_wait();
      won[1] = cell->end(KvPoll::kFailed, aborted());
    });
    std::thread fail([&] {
      start.arrive_and_wait();
      won[2] = cell->end(KvPoll::kFailed, lost());
    });
    std::thread reader([&] {
      start.arrive_and_wait();
      do {
        seen = table.read(cell->id);
      } while (!is_terminal(seen));
      text = cell->failure();
    });
    success.join();
    abort.join();
    fail.join();
    reader.join();
    ASSERT_EQ(won[0] + won[1] + won[2], 1);
    EXPECT_EQ(seen, won[0] ? KvPoll::kSuccess : KvPoll::kFailed);
    EXPECT_EQ(seen, cell->load());
    EXPECT_EQ(text.has_value(), !won[0]);
    if (text) {
      EXPECT_EQ(*text, won[1] ? aborted() : lost());
    }
    cell->clear(aborted());
    table.release(cell->id);
  }
}

// Success against clear(): the pages have exactly one owner. Either the end lost, or it won and the
// clear reports it unread, since nobody polled.
TEST(StatusCellRace, PagesHaveOneOwner) {
  StatusTable table(4);
  for (int round = 0; round < 500; ++round) {
    const auto cell = receiver(table);
    std::latch start(2);
    bool succeeded = false;
    StatusCell::Cleared cleared;
    std::thread core([&] {
      start.arrive_and_wait();
      succeeded = cell->end(KvPoll::kSuccess, std::nullopt);
    });
    std::thread caller([&] {
      start.arrive_and_wait();
      cleared = cell->clear(aborted());
    });
    core.join();
    caller.join();
    ASSERT_TRUE(cleared.first);
    EXPECT_NE(succeeded, cleared.ended);
    EXPECT_EQ(succeeded, cleared.unread_success);
    table.release(cell->id);
  }
}

// Places change owners while others poll and end what they hold.
TEST(StatusCellRace, PlacesChangeHands) {
  StatusTable table(64);
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    std::vector<std::uint64_t> ids(256);
    std::vector<KvPoll> statuses(ids.size());
    std::uint64_t base = 0;
    while (!stop) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = base + i;
      }
      base = (base + 64) % 20'000;
      table.read_many(ids, statuses);
    }
  });
  std::vector<std::thread> callers;
  for (int t = 0; t < 2; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 3'000; ++i) {
        const auto cell = receiver(table);
        const auto found = table.find(cell->id);
        ASSERT_EQ(found, cell);
        found->advance(KvPoll::kTransferring);
        found->end(KvPoll::kSuccess, std::nullopt);
        cell->clear(aborted());
        table.release(cell->id);
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  stop = true;
  poller.join();
  EXPECT_EQ(table.open_handles(), 0U);
}

}  // namespace
}  // namespace kvferry::runtime
