// Two engines of `bench handoff` in one process: rooms succeed over each transport, aborted ones
// end and give everything back, and bytes that are not the room's are found.
#include <gtest/gtest.h>

#include <unistd.h>
#include <future>
#include <memory>

#include "bench/handoff/abort_case.h"
#include "bench/handoff/handoff_engine.h"
#include "kvferry/bootstrap_server.h"

namespace kvferry::bench {
namespace {

class RoomsTest : public testing::TestWithParam<const char*> {
 protected:
  void start(const std::string& transport, std::uint32_t lanes) {
    registry_ = std::move(*BootstrapServer::start({}));
    const std::string address = registry_->address();
    address.copy(setup_.registry.data(), address.size());
    transport.copy(setup_.transport.data(), transport.size());
    setup_.lanes = lanes;
    auto prefill = HandoffEngine::start(Role::kPrefill, setup_);
    ASSERT_TRUE(prefill) << prefill.error().what;
    prefill_ = std::move(*prefill);
    data_plane::Fd shared;
    if (transport == kNullName) shared = data_plane::Fd(::dup(prefill_->memory_fd()));
    auto decode = HandoffEngine::start(Role::kDecode, setup_, std::move(shared));
    ASSERT_TRUE(decode) << decode.error().what;
    decode_ = std::move(*decode);
  }

  PairTurn run(const HandoffOrder& prefill_order, const HandoffOrder& decode_order) {
    std::promise<void> open;
    auto prefill = std::async(std::launch::async, [&] {
      return prefill_->run(prefill_order, [&] { open.set_value(); });
    });
    open.get_future().wait();
    auto decode = decode_->run(decode_order, [] {});
    auto posted = prefill.get();
    EXPECT_TRUE(decode && posted);
    return decode && posted ? PairTurn{*posted, *decode} : PairTurn{};
  }
  PairTurn run(const HandoffOrder& order) { return run(order, order); }

  static void expect_nothing_left(const SideResult& side) {
    EXPECT_EQ(side.hung, 0U) << side.first_failure.data();
    EXPECT_EQ(side.unasked, 0U) << side.first_failure.data();
    EXPECT_EQ(side.changed_ends + side.stray_pages, 0U);
    EXPECT_EQ(side.open_handles, 0U);
    EXPECT_EQ(side.open_rooms, 0U);
    EXPECT_EQ(side.open_grants + side.open_tickets + side.quarantine_pages, 0U);
  }

  HandoffSetup setup_;
  std::unique_ptr<BootstrapServer> registry_;
  std::unique_ptr<HandoffEngine> prefill_;
  std::unique_ptr<HandoffEngine> decode_;
};

TEST_P(RoomsTest, EveryRoomSucceedsOnceOnBothSides) {
  const std::string transport = GetParam();
  start(transport, 8);
  HandoffOrder order;
  order.rooms = 50;
  order.concurrency = 8;
  order.content = transport == kNullName ? Content::kNone : Content::kFull;
  for (int turn = 0; turn < 2; ++turn) {
    const PairTurn done = run(order);
    for (const SideResult* side : {&done.decode, &done.prefill}) {
      EXPECT_EQ(side->succeeded, 50U);
      EXPECT_EQ(side->failed, 0U);
      EXPECT_GT(side->duration, Duration::zero());
      EXPECT_LE(side->p50, side->p99);
      EXPECT_LE(side->p99, side->max);
      expect_nothing_left(*side);
    }
    EXPECT_EQ(done.decode.wrong_items + done.decode.touched_items, 0U);
    order.first_room += order.rooms;
  }
}
INSTANTIATE_TEST_SUITE_P(Transports, RoomsTest, testing::Values("null", "shm", "tcp"));

TEST_F(RoomsTest, AbortedRoomsEndAndGiveEverythingBack) {
  // A sender whose receiver ended before it knew of any prefill rank ends by its own deadline.
  setup_.bootstrap_timeout_ms = 3'000;
  start("tcp", 16);
  HandoffOrder order;
  order.rooms = 200;
  order.concurrency = 16;
  order.abort_permille = 300;
  order.content = Content::kFull;
  const PairTurn done = run(order);
  for (const SideResult* side : {&done.decode, &done.prefill}) {
    EXPECT_EQ(side->succeeded + side->failed, 200U);
    expect_nothing_left(*side);
  }
  EXPECT_GT(done.decode.aborts + done.prefill.aborts, 0U);
  EXPECT_GT(done.decode.failed, 0U);
  EXPECT_EQ(done.decode.wrong_items + done.decode.touched_items, 0U);
}

// The control of every run without wrong bytes.
TEST_F(RoomsTest, BytesThatAreNotTheRoomsAreFound) {
  start("tcp", 4);
  HandoffOrder decode_order;
  decode_order.rooms = 8;
  decode_order.concurrency = 4;
  decode_order.content = Content::kFull;
  HandoffOrder prefill_order = decode_order;
  prefill_order.content = Content::kStamp;  // the first word of each page, and nothing behind it
  const PairTurn done = run(prefill_order, decode_order);
  EXPECT_EQ(done.decode.succeeded, 8U);
  EXPECT_EQ(done.decode.wrong_items, 8U * setup_.pages_per_room * setup_.layers * 2);
}

TEST_F(RoomsTest, PollsReadRoomsThatWait) {
  start("null", 4);
  const auto times = decode_->measure_polls(64);
  ASSERT_TRUE(times) << times.error().what;
  EXPECT_GT(times->p50, Duration::zero());
  EXPECT_LE(times->p50, times->p99);
}

TEST(RoomMemoryTest, AnAlteredByteOfAPageThatIsNobodysIsFound) {
  HandoffSetup setup;
  setup.lanes = 2;
  auto memory = RoomMemory::create(setup);
  ASSERT_TRUE(memory) << memory.error().what;
  memory->poison(1);
  EXPECT_EQ(memory->count_touched(1), 0U);
  const Region value = memory->regions()[setup.layers * 2 - 1];
  const std::size_t last = setup.item_bytes * value.item_count - 1;
  value.base[last] ^= std::byte{1};
  EXPECT_EQ(memory->count_touched(1), 1U);
}

TEST(RoomMemoryTest, ContentNamesRoomPageAndRegion) {
  HandoffSetup setup;
  setup.lanes = 2;
  auto memory = RoomMemory::create(setup);
  ASSERT_TRUE(memory) << memory.error().what;
  memory->write(0, 7, Content::kFull);
  EXPECT_EQ(memory->count_wrong(0, 7, Content::kFull), 0U);
  EXPECT_EQ(memory->count_wrong(0, 7, Content::kStamp), 0U);
  EXPECT_EQ(memory->count_wrong(0, 8, Content::kStamp), setup.pages_per_room * setup.layers * 2);
  memory->regions()[0].base[setup.item_bytes - 1] ^= std::byte{1};
  EXPECT_EQ(memory->count_wrong(0, 7, Content::kFull), 1U);
  EXPECT_EQ(memory->count_wrong(0, 7, Content::kStamp), 0U);
}

TEST(AbortPlanTest, BothSidesDrawTheSameRoomsAndSomeOfEachKind) {
  HandoffOrder order;
  order.abort_permille = 100;
  std::uint32_t aborted = 0;
  std::array<std::uint32_t, 5> at{};
  for (std::uint64_t room = 1; room <= 10'000; ++room) {
    const AbortPlan plan = abort_plan_of(room, order);
    EXPECT_EQ(plan.by_decode, abort_plan_of(room, order).by_decode);
    if (!plan.by_decode && !plan.by_prefill) continue;
    ++aborted;
    ++at[static_cast<std::size_t>(plan.at)];
  }
  EXPECT_GT(aborted, 800U);
  EXPECT_LT(aborted, 1'200U);
  for (const KvPoll status :
       {KvPoll::kBootstrapping, KvPoll::kWaitingForInput, KvPoll::kTransferring}) {
    EXPECT_GT(at[static_cast<std::size_t>(status)], 200U);
  }
}

}  // namespace
}  // namespace kvferry::bench
