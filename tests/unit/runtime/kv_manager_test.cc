// Rooms between two managers, from the first call to the last released page.
#include <algorithm>
#include <filesystem>
#include <map>

#include "base/prng.h"
#include "pair_fixture.h"

namespace kvferry {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAreArray;

class KvManagerTest : public test::PairTest {};

TEST_F(KvManagerTest, OneRoomArrivesByteForByte) {
  start_pair();
  Room room = open_room(1, 8);
  EXPECT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kWaitingForInput; }))
      << test::text_of(room.sender->failure()) << test::text_of(room.receiver->failure());
  EXPECT_EQ(room.sender->decode_prefix_pages(), 0U);
  send_all(room);
  expect_success(room);
  EXPECT_GT(room.receiver->attempt(), AttemptId(0));
  EXPECT_FALSE(room.sender->failure().has_value());
  EXPECT_GT(room.sender->landed_bytes(), 0U);
  // Prefill's pages come back; decode's are the caller's, who read Success.
  ReleasedPages released;
  ASSERT_TRUE(await_released(*prefill_, room.sender->id(), released));
  EXPECT_THAT(released.pages, UnorderedElementsAreArray(room.source));
  EXPECT_EQ(released.binding, room.binding);
  EXPECT_EQ(released.aux_slot, room.aux);
  EXPECT_TRUE(decode_->take_released().empty());
}

TEST_F(KvManagerTest, BehindAWildcardPeersAreToldTheAdvertisedHost) {
  options_.control_host = "0.0.0.0";
  options_.data_host = "0.0.0.0";
  options_.advertise_host = "127.0.0.1";
  start_pair();
  ASSERT_TRUE(prefill_ && decode_);
  EXPECT_THAT(decode_->control_endpoint(), testing::StartsWith("127.0.0.1:"));
  run_room(1, 4);
}

TEST_F(KvManagerTest, TheTransportsCountersAreAmongTheMetrics) {
  start_pair();
  const auto names = [](const KvManager& manager) {
    std::vector<std::string> list;
    for (const MetricSample& sample : manager.metrics()) {
      list.push_back(sample.name);
    }
    return list;
  };
  EXPECT_THAT(names(*prefill_), testing::Contains("queued_writes_refused_total"));
  decode_->stop();
  EXPECT_THAT(names(*decode_),
              testing::IsSupersetOf({"lane_strangers_full_total", "lane_strangers_rejected_total",
                                     "lane_strangers_timed_out_total"}));
}

TEST_F(KvManagerTest, ARoomMayHaveNoPages) {
  start_pair();
  run_room(2, 0);
}

TEST_F(KvManagerTest, ThePrefixThatDecodeHasIsNotSent) {
  start_pair();
  Room room = name_room(3, 4);
  room.receiver = std::make_unique<KvReceiver>(*decode_, room.room, room.binding);
  ASSERT_TRUE(room.receiver->init(registry_->address(), "p"));
  ASSERT_TRUE(room.receiver->send_metadata(room.target, room.aux, {}, 8));
  open_sender(room);
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kWaitingForInput; }))
      << test::text_of(room.sender->failure());
  EXPECT_EQ(room.sender->decode_prefix_pages(), 2U);
  send_all(room);
  expect_success(room);
}

TEST_F(KvManagerTest, ManyRoomsAtOnce) {
  start_pair();
  std::vector<Room> rooms;
  for (std::uint64_t number = 0; number < 64; ++number) {
    rooms.push_back(open_room(number, 1 + number % 8));
  }
  for (Room& room : rooms) {
    send_all(room);
  }
  std::vector<std::uint64_t> ids;
  for (const Room& room : rooms) {
    ids.push_back(room.receiver->id());
  }
  std::vector<KvPoll> statuses(ids.size());
  ASSERT_TRUE(test::await([&] {
    decode_->poll_many(ids, statuses);
    return std::all_of(statuses.begin(), statuses.end(), is_terminal);
  })) << decode_->dump_status();
  for (Room& room : rooms) {
    expect_success(room);
  }
  rooms.clear();
  EXPECT_TRUE(await_metric(*prefill_, "open_handles", 0));
  EXPECT_TRUE(await_metric(*decode_, "open_handles", 0));
  // At rest nothing is held (R1), and what started has ended (R4).
  EXPECT_TRUE(await_metric(*decode_, "grants", 0));
  EXPECT_TRUE(await_metric(*prefill_, "tickets", 0));
  EXPECT_TRUE(test::await([&] {
    return test::metric(*decode_, "pages_granted_total") ==
               test::metric(*decode_, "pages_returned_total") &&
           test::metric(*prefill_, "pages_held_total") ==
               test::metric(*prefill_, "pages_released_total");
  }));
  EXPECT_EQ(test::metric(*decode_, "quarantined_pages"), 0);
  for (const KvManager* manager : {prefill_.get(), decode_.get()}) {
    EXPECT_EQ(test::metric(*manager, "rooms_started_total"), 64);
    EXPECT_EQ(test::metric(*manager, "rooms_succeeded_total"), 64);
    EXPECT_EQ(test::metric(*manager, "rooms_live"), 0);
  }
}

TEST_F(KvManagerTest, ARoomNumberIsReusedAtOnce) {
  start_pair();
  for (int i = 0; i < 10; ++i) {
    run_room(5, 3);
  }
}

TEST_F(KvManagerTest, DecodeAbortsAndGetsItsPagesBack) {
  start_pair();
  Room room = open_room(6, 4);
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kWaitingForInput; }));
  room.receiver->abort("the client left");
  EXPECT_EQ(room.receiver->poll(), KvPoll::kFailed);  // at once
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kFailed; }));
  // The same first cause on both sides.
  for (const auto& failure : {room.receiver->failure(), room.sender->failure()}) {
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->code, FailureCode::kAborted);
    EXPECT_THAT(failure->what, HasSubstr("the client left"));
  }
  ReleasedPages released;
  ASSERT_TRUE(await_released(*decode_, room.receiver->id(), released));
  EXPECT_THAT(released.pages, UnorderedElementsAreArray(room.target));
  EXPECT_EQ(released.aux_slot, room.aux);
  EXPECT_TRUE(await_metric(*decode_, "quarantined_pages", 0));
  // The pages serve the next room.
  run_room(6, 4);
}

TEST_F(KvManagerTest, PrefillAbortsAfterSomeChunks) {
  start_pair();
  Room room = open_room(7, 6);
  ASSERT_TRUE(room.sender->send(std::span(room.source).first(3)));
  ASSERT_TRUE(test::await([&] { return room.receiver->poll() == KvPoll::kTransferring; }))
      << decode_->dump_status();
  room.sender->abort("out of memory");
  EXPECT_EQ(room.sender->poll(), KvPoll::kFailed);
  ASSERT_TRUE(test::await([&] { return room.receiver->poll() == KvPoll::kFailed; }));
  ASSERT_TRUE(room.receiver->failure().has_value());
  EXPECT_EQ(room.receiver->failure()->code, FailureCode::kAborted);
  EXPECT_THAT(room.receiver->failure()->what, HasSubstr("out of memory"));
  ReleasedPages target;
  ASSERT_TRUE(await_released(*decode_, room.receiver->id(), target));
  EXPECT_THAT(target.pages, UnorderedElementsAreArray(room.target));
  ReleasedPages source;
  ASSERT_TRUE(await_released(*prefill_, room.sender->id(), source));
  EXPECT_THAT(source.pages, UnorderedElementsAreArray(std::span(room.source).first(3)));
}

TEST_F(KvManagerTest, ClearIsAnAbortOfAnUnfinishedRoom) {
  start_pair();
  Room room = open_room(8, 4);
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kWaitingForInput; }));
  const std::uint64_t receiver = room.receiver->id();
  room.receiver.reset();
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kFailed; }));
  EXPECT_EQ(room.sender->failure()->code, FailureCode::kAborted);
  ReleasedPages released;
  ASSERT_TRUE(await_released(*decode_, receiver, released));
  EXPECT_THAT(released.pages, UnorderedElementsAreArray(room.target));
}

TEST_F(KvManagerTest, ASuccessThatNobodyReadComesBack) {
  start_pair();
  Room room = open_room(9, 4);
  send_all(room);
  // The sender's Success proves the receiver's, without a look at the receiver.
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kSuccess; }))
      << test::text_of(room.sender->failure());
  const std::uint64_t receiver = room.receiver->id();
  room.receiver->clear();
  EXPECT_EQ(room.receiver->poll(), KvPoll::kFailed);
  ReleasedPages released;
  ASSERT_TRUE(await_released(*decode_, receiver, released));
  EXPECT_THAT(released.pages, UnorderedElementsAreArray(room.target));
}

TEST_F(KvManagerTest, AnOpenRoomIsNotOpenedTwice) {
  start_pair();
  Room room = name_room(10, 2);
  open_sender(room);
  KvSender twice(*prefill_, room.room, room.binding);
  ASSERT_TRUE(test::await([&] { return twice.poll() == KvPoll::kFailed; }));
  EXPECT_EQ(twice.failure()->code, FailureCode::kDuplicateRoom);
  EXPECT_EQ(room.sender->poll(), KvPoll::kBootstrapping);
  // Another binding is another room.
  Room other = open_room(10, 2);
  send_all(other);
  expect_success(other);
}

TEST_F(KvManagerTest, ASleepingSchedulerIsWoken) {
  start_pair();
  Room room = open_room(11, 4);
  send_all(room);
  const auto sleep_until = [](KvManager& manager, const auto& done) {
    while (!done()) {
      pollfd entry{manager.event_fd(), POLLIN, 0};
      ASSERT_EQ(::poll(&entry, 1, 20'000), 1) << manager.dump_status();
      manager.drain_event_fd();
    }
  };
  sleep_until(*decode_, [&] { return is_terminal(room.receiver->poll()); });
  EXPECT_EQ(room.receiver->poll(), KvPoll::kSuccess) << test::text_of(room.receiver->failure());
  std::vector<ReleasedPages> released;
  sleep_until(*prefill_, [&] {
    for (ReleasedPages& each : prefill_->take_released()) {
      released.push_back(std::move(each));
    }
    return !released.empty();
  });
  EXPECT_THAT(released.front().pages, UnorderedElementsAreArray(room.source));
}

TEST_F(KvManagerTest, ASchedulerMayLookAtWhatHasChangedAlone) {
  start_pair();
  EXPECT_EQ(decode_->take_changed(), std::nullopt) << "nothing is noted before the first call";
  Room room = open_room(11, 4);
  KvReceiver refused(*decode_, RoomId(14), Binding{1, 14});
  EXPECT_FALSE(refused.send_metadata({}, -1)) << "before init()";
  KvReceiver aborted(*decode_, RoomId(15), Binding{1, 15});
  aborted.abort();
  KvSender of_the_other_role(*decode_, RoomId(16), Binding{1, 16});
  send_all(room);
  std::map<std::uint64_t, KvPoll> seen;
  ASSERT_TRUE(test::await([&] {
    const auto changed = decode_->take_changed();
    if (!changed) {
      ADD_FAILURE() << "few changes are never too many";
      return true;
    }
    std::vector<KvPoll> statuses(changed->size());
    decode_->poll_many(*changed, statuses);
    for (std::size_t i = 0; i < changed->size(); ++i) {
      seen[(*changed)[i]] = statuses[i];
    }
    return seen[room.receiver->id()] == KvPoll::kSuccess;
  }));
  const std::map<std::uint64_t, KvPoll> expected{{room.receiver->id(), KvPoll::kSuccess},
                                                 {refused.id(), KvPoll::kFailed},
                                                 {aborted.id(), KvPoll::kFailed},
                                                 {of_the_other_role.id(), KvPoll::kFailed}};
  EXPECT_EQ(seen, expected);
  decode_->stop();
  EXPECT_EQ(decode_->take_changed(), std::nullopt) << "every handle may have ended";
}

TEST_F(KvManagerTest, StoppingFailsWhatIsOpenAndRefusesWhatComes) {
  start_pair();
  Room room = open_room(12, 4);
  ASSERT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kWaitingForInput; }));
  decode_->stop();
  EXPECT_EQ(room.receiver->poll(), KvPoll::kFailed);
  EXPECT_EQ(room.receiver->failure()->code, FailureCode::kShuttingDown);
  EXPECT_TRUE(test::await([&] { return room.sender->poll() == KvPoll::kFailed; }));
  KvReceiver late(*decode_, RoomId(13), Binding{});
  EXPECT_EQ(late.poll(), KvPoll::kFailed);
  EXPECT_EQ(late.failure()->code, FailureCode::kShuttingDown);
  EXPECT_FALSE(decode_->readiness_problems().empty());
  decode_->stop();
  // A handle may outlive its manager, though it should not.
  decode_.reset();
  room.receiver->abort();
  EXPECT_EQ(room.receiver->poll(), KvPoll::kFailed);
}

// Rooms that end in every way a caller can think of, at every point: each page that was given comes
// back exactly once, either read with Success or released, and nothing else does.
TEST_F(KvManagerTest, EveryPageComesBackOnce) {
  // A receiver that ends before it knows its prefill can't tell it; that sender waits so long.
  options_.bootstrap_timeout_ms = 1'000;
  start_pair();
  Prng prng(0x5EED);
  for (int round = 0; round < 3; ++round) {
    std::vector<Room> rooms;
    std::map<std::uint64_t, std::vector<PageIndex>> owed_source;
    std::map<std::uint64_t, std::vector<PageIndex>> owed_target;
    for (std::uint64_t number = 0; number < 64; ++number) {
      rooms.push_back(open_room(number, 1 + static_cast<std::uint32_t>(prng.below(12))));
      owed_target[rooms.back().receiver->id()] = rooms.back().target;
    }
    for (Room& room : rooms) {
      const std::uint64_t choice = prng.below(8);
      if (choice == 0) {
        room.sender->abort();
      } else if (choice == 1) {
        room.receiver->abort();
      } else if (choice == 2) {
        const auto part = std::span(room.source).first(1);
        if (room.sender->send(part)) {
          owed_source[room.sender->id()] = {part.begin(), part.end()};
        }
        room.sender->abort();
      } else {
        send_all(room);
        owed_source[room.sender->id()] = room.source;
        if (choice == 3) {
          room.receiver->abort();
        } else if (choice == 4) {
          room.sender->clear();
        } else if (choice == 5) {
          room.receiver->clear();
        }
      }
    }
    for (Room& room : rooms) {
      ASSERT_TRUE(await_end(room)) << prefill_->dump_status() << decode_->dump_status();
      if (room.receiver->poll() == KvPoll::kSuccess) {
        owed_target.erase(room.receiver->id());
      }
    }
    const auto collect = [](KvManager& manager, auto& owed) {
      return test::await([&] {
        for (const ReleasedPages& released : manager.take_released()) {
          if (released.pages.empty()) {
            continue;  // the aux slot of a sender that sent nothing
          }
          const auto found = owed.find(released.owner);
          EXPECT_TRUE(found != owed.end()) << "released twice, or never given";
          if (found != owed.end()) {
            EXPECT_THAT(released.pages, UnorderedElementsAreArray(found->second));
            owed.erase(found);
          }
        }
        return owed.empty();
      });
    };
    EXPECT_TRUE(collect(*decode_, owed_target)) << decode_->dump_status();
    EXPECT_TRUE(collect(*prefill_, owed_source)) << prefill_->dump_status();
  }
  EXPECT_TRUE(await_metric(*decode_, "grants", 0));
  EXPECT_TRUE(await_metric(*decode_, "quarantined_pages", 0));
  EXPECT_TRUE(await_metric(*prefill_, "tickets", 0));
  EXPECT_TRUE(prefill_->readiness_problems().empty());
  EXPECT_TRUE(decode_->readiness_problems().empty());
  EXPECT_TRUE(decode_->take_released().empty());
}

TEST_F(KvManagerTest, NothingIsLeftBehind) {
  const auto entries = [](const char* folder) {
    return std::distance(std::filesystem::directory_iterator(folder), {});
  };
  const auto threads = entries("/proc/self/task");
  const auto descriptors = entries("/proc/self/fd");
  for (int i = 0; i < 3; ++i) {
    start_pair();
    run_room(1, 4);
    prefill_.reset();  // decode stops with a dead peer
    decode_.reset();
  }
  // The registry may still be closing connections that its clients have closed.
  EXPECT_TRUE(test::await([&] {
    return entries("/proc/self/task") <= threads && entries("/proc/self/fd") <= descriptors;
  })) << entries("/proc/self/task")
      << " threads of " << threads << ", " << entries("/proc/self/fd") << " descriptors of "
      << descriptors;
}

}  // namespace
}  // namespace kvferry
