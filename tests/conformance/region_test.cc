// The life of registered regions: what can't be registered, who keeps them in use, and other memory
// under the same transports.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <utility>

#include "data_plane/factory.h"
#include "data_plane/host_regions.h"
#include "process_state.h"
#include "rig.h"
#include "run_length.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;
using testing::TestWithParam;

constexpr std::uint64_t kSession = 7;

std::vector<Case> simple_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& c) { return c.shape.regions != 1; });
  return cases;
}
std::vector<Case> simple_blockable_cases() {
  std::vector<Case> cases = blockable_cases();
  std::erase_if(cases, [](const Case& c) { return c.shape.regions != 1; });
  return cases;
}
constexpr auto kName = [](const auto& shown) { return case_name(shown.param); };

// A rig whose regions can be changed for those of other pools.
class Regions : public TestWithParam<Case> {
 protected:
  static Rig::Tuning tuning() {
    Rig::Tuning tuning;
    tuning.with_relay = true;
    return tuning;
  }
  Regions() : rig_(GetParam(), tuning()) {}

  Pool::Backing source_backing() const {
    return GetParam().kind == Kind::kShm ? Pool::Backing::kShared : Pool::Backing::kPrivate;
  }
  std::uint32_t released_at(RecordingSink& sink) { return sink.snapshot().releases; }
  bool wait_released(RecordingSink& sink, std::uint32_t count) {
    return sink.wait([&](const auto& state) { return state.releases == count; });
  }
  void expect_refused(const Status& status, FailureCode code, const std::string& part) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, code) << status.error().what;
    EXPECT_NE(status.error().what.find(part), std::string::npos) << status.error().what;
  }
  void free_both() {
    ASSERT_TRUE(rig_.source().unregister_regions(Unregister::kRefuseWhileUsed));
    ASSERT_TRUE(rig_.target().unregister_regions(Unregister::kRefuseWhileUsed));
  }

  Rig rig_;
};

TEST_P(Regions, OverlappingOnesAreRefusedWithBoth) {
  ASSERT_NO_FATAL_FAILURE(free_both());
  const Region whole = rig_.source_pool().regions().front();
  Region first = whole;
  first.item_count = 2;
  Region second = first;
  second.base += 2 * whole.item_bytes;
  second.memory_fd_offset += 2 * whole.item_bytes;
  Region third = first;
  third.base += 3 * whole.item_bytes;  // the second item of `second`
  third.memory_fd_offset += 3 * whole.item_bytes;
  for (Transport* side : {&rig_.source(), &rig_.target()}) {
    const std::vector<Region> overlapping{third, first, second};
    const Status refused = side->register_regions(overlapping);
    expect_refused(refused, FailureCode::kInvalidArgument, "region 0 (131072 bytes from 0x");
    expect_refused(refused, FailureCode::kInvalidArgument, "overlaps region 2 (131072 bytes");
    EXPECT_TRUE(side->register_regions(std::vector<Region>{second, first})) << "they only touch";
  }
}

TEST_P(Regions, MoreThanTheLimitAreRefused) {
  ASSERT_NO_FATAL_FAILURE(free_both());
  const Region whole = rig_.source_pool().regions().front();
  std::vector<Region> many;
  for (std::size_t i = 0; i <= kMaxRegions; ++i) {
    Region& region = many.emplace_back(whole);
    region.base += 64 * i;
    region.memory_fd_offset += 64 * i;
    region.item_bytes = 64;
    region.item_count = 1;
  }
  for (Transport* side : {&rig_.source(), &rig_.target()}) {
    expect_refused(side->register_regions(many), FailureCode::kInvalidArgument,
                   "4097 regions, allowed are 4096");
    EXPECT_TRUE(side->register_regions(std::span(many).first(kMaxRegions)));
  }
}

TEST_P(Regions, OneRegistrationIsInForceAtATime) {
  for (Transport* side : {&rig_.source(), &rig_.target()}) {
    const auto regions =
        side == &rig_.source() ? rig_.source_pool().regions() : rig_.target_pool().regions();
    expect_refused(side->register_regions(regions), FailureCode::kWrongState, "unregister them");
    EXPECT_TRUE(side->unregister_regions(Unregister::kRefuseWhileUsed));
    expect_refused(side->unregister_regions(Unregister::kWhenUnused), FailureCode::kWrongState,
                   "no regions");
    EXPECT_TRUE(side->register_regions(regions));
  }
}

TEST_P(Regions, AGrantUsesTheTargetsUntilItsFenceIsDone) {
  rig_.open(kSession);
  rig_.grant(1, kSession, 0, 1, {0, 1});
  rig_.grant(2, kSession, 1, 1, {2});
  Transport& target = rig_.target();
  expect_refused(target.unregister_regions(Unregister::kRefuseWhileUsed), FailureCode::kWrongState,
                 "used by 2 grants");
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded)
      << "a refused call changes nothing";
  ASSERT_TRUE(rig_.fence(1));
  ASSERT_TRUE(target.unregister_regions(Unregister::kWhenUnused));
  expect_refused(target.register_regions(rig_.target_pool().regions()), FailureCode::kWrongState,
                 "still used");
  EXPECT_EQ(rig_.send(kSession, rig_.write(1, 1, 0, 2)), WriteOutcome::kLanded)
      << "the grant that uses them goes on";
  rig_.grant(3, kSession, 0, 2, {3});
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 2, 0, 3)), WriteOutcome::kRefused);
  EXPECT_TRUE(rig_.item_is(0, 3, kCanary));
  ASSERT_TRUE(rig_.fence(3));
  EXPECT_EQ(released_at(rig_.target_sink()), 0U) << "grant 2 is still open";
  ASSERT_TRUE(rig_.fence(2));
  EXPECT_TRUE(wait_released(rig_.target_sink(), 1));
  ASSERT_TRUE(target.register_regions(rig_.target_pool().regions()));
  EXPECT_TRUE(target.unregister_regions(Unregister::kWhenUnused));
  EXPECT_EQ(released_at(rig_.target_sink()), 2U) << "at once when nothing uses them";
}

TEST_P(Regions, APostedWriteUsesTheSourcesUntilItsEnd) {
  Transport& source = rig_.source();
  // A write that waits for its answer: the receiving thread is held while it reports the landing.
  std::promise<void> is_landing;
  std::promise<void> go_on;
  rig_.target_sink().on_landed = [&, once = false](std::span<const Landing>) mutable {
    if (std::exchange(once, true)) return;
    is_landing.set_value();
    go_on.get_future().wait();
  };
  rig_.open(kSession);
  rig_.grant(1, kSession, 0, 1, {0, 1, 2});
  const Write held = rig_.write(0, 1, 0, 1);
  rig_.post(kSession, {held});
  is_landing.get_future().wait();
  expect_refused(source.unregister_regions(Unregister::kRefuseWhileUsed), FailureCode::kWrongState,
                 "by 1 posted writes");
  ASSERT_TRUE(source.unregister_regions(Unregister::kWhenUnused));
  expect_refused(source.register_regions(rig_.source_pool().regions()), FailureCode::kWrongState,
                 "still used");
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 2)), WriteOutcome::kRefused);
  EXPECT_EQ(released_at(rig_.source_sink()), 0U) << "the refused one does not count";
  go_on.set_value();
  ASSERT_TRUE(rig_.source_sink().wait_outcome(held.ticket.value()));
  EXPECT_EQ(rig_.source_sink().outcome(held.ticket.value()), WriteOutcome::kLanded);
  EXPECT_TRUE(wait_released(rig_.source_sink(), 1));
  EXPECT_TRUE(source.register_regions(rig_.source_pool().regions()));
}

TEST_P(Regions, OpenSessionsTakeOtherMemoryOfTheSameShapeOnly) {
  rig_.open(kSession);
  rig_.grant(1, kSession, 0, 1, {0});
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  ASSERT_TRUE(rig_.fence(1));
  ASSERT_NO_FATAL_FAILURE(free_both());
  Pool source_pool(GetParam().shape, source_backing());
  Pool target_pool(GetParam().shape);
  source_pool.fill_pattern(2);
  target_pool.fill(kCanary);
  for (Transport* side : {&rig_.source(), &rig_.target()}) {
    Region half = (side == &rig_.source() ? source_pool : target_pool).regions().front();
    half.item_count /= 2;
    expect_refused(side->register_regions(std::span(&half, 1)), FailureCode::kWrongState,
                   "close the sessions");
  }
  ASSERT_TRUE(rig_.source().register_regions(source_pool.regions()));
  ASSERT_TRUE(rig_.target().register_regions(target_pool.regions()));
  // The former memory is not to be read or written any more, by anybody.
  rig_.source_pool().fill(std::byte{0xDD});
  rig_.target_pool().fill(kCanary);
  rig_.grant(2, kSession, 0, 2, {5});
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 2, 0, 5)), WriteOutcome::kLanded);
  const auto sent = source_pool.item(0, 5);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), target_pool.item(0, 5).begin()));
  EXPECT_TRUE(rig_.item_is(0, 5, kCanary)) << "the old pool of the target was written";
  // Before the pools go.
  rig_.source().stop();
  rig_.target().stop();
}

TEST_P(Regions, ClosedSessionsLeaveRoomForAnotherShape) {
  rig_.open(kSession);
  rig_.close(kSession);
  ASSERT_NO_FATAL_FAILURE(free_both());
  for (Transport* side : {&rig_.source(), &rig_.target()}) {
    Region half = (side == &rig_.source() ? rig_.source_pool() : rig_.target_pool()).regions()[0];
    half.item_count /= 2;
    ASSERT_TRUE(side->register_regions(std::span(&half, 1)));
  }
  rig_.open(kSession + 1);
  const std::uint32_t beyond = GetParam().shape.items / 2;
  rig_.grant(1, kSession + 1, 0, 1, {0, beyond});
  EXPECT_EQ(rig_.send(kSession + 1, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  Write outside = rig_.write(0, 1, 0, beyond);
  outside.source_offset = 0;
  EXPECT_EQ(rig_.send(kSession + 1, outside), WriteOutcome::kRefused);
  EXPECT_TRUE(rig_.item_is(0, beyond, kCanary));
}

TEST_P(Regions, ComeAndGoAndLeaveNothing) {
  const std::uint64_t rounds = by_length(200, 10'000);
  constexpr std::uint64_t kWarmUp = 10;
  ProcessState state;
  for (std::uint64_t i = 1; i <= rounds + kWarmUp; ++i) {
    if (i == kWarmUp) state.warmed_up();
    rig_.open(i);
    rig_.grant(i, i, 0, 1, {0});
    ASSERT_EQ(rig_.send(i, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
    ASSERT_TRUE(rig_.fence(i));
    ASSERT_NO_FATAL_FAILURE(free_both());
    ASSERT_TRUE(rig_.source().register_regions(rig_.source_pool().regions()));
    ASSERT_TRUE(rig_.target().register_regions(rig_.target_pool().regions()));
    rig_.close(i);
    rig_.source_sink().forget();
    rig_.target_sink().forget();
  }
  state.expect_unchanged();
}

INSTANTIATE_TEST_SUITE_P(All, Regions, testing::ValuesIn(simple_cases()), kName);

// A write that is unknown may still be read, so it uses its source until it is quiet.
class BlockedRegions : public Regions {};

TEST_P(BlockedRegions, UnknownIsNoEndAndQuietIs) {
  const Write write = rig_.write(0, 1, 0, 1);
  std::atomic<bool> was_quiet{false};
  rig_.source_sink().on_released = [&] {
    was_quiet = rig_.source_sink().snapshot().is_quiet(write.ticket.value());
  };
  rig_.open(kSession);
  rig_.grant(1, kSession, 0, 1, {0, 1});
  EXPECT_EQ(rig_.send(kSession, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  rig_.block(true);
  rig_.post(kSession, {write});
  ASSERT_TRUE(rig_.source().unregister_regions(Unregister::kWhenUnused));
  rig_.close(kSession);
  ASSERT_TRUE(rig_.source_sink().wait_outcome(write.ticket.value()));
  EXPECT_EQ(rig_.source_sink().outcome(write.ticket.value()), WriteOutcome::kUnknown);
  ASSERT_TRUE(rig_.source_sink().wait_quiet(write.ticket.value()));
  EXPECT_TRUE(wait_released(rig_.source_sink(), 1));
  EXPECT_TRUE(was_quiet);
  rig_.block(false);
}

INSTANTIATE_TEST_SUITE_P(All, BlockedRegions, testing::ValuesIn(simple_blockable_cases()), kName);

// What a source names as memory that others can map.
class MemoryFiles : public testing::Test {
 protected:
  Status register_at(const char* transport, Role role, int memory_fd, std::uint64_t offset) {
    TransportConfig config;
    config.role = role;
    auto made = make_transport(transport, config, sink_);
    if (!made) return tl::unexpected(made.error());
    Region region = pool_.regions().front();
    region.memory_fd = memory_fd;
    region.memory_fd_offset = offset;
    const Status status = (*made)->register_regions(std::span(&region, 1));
    (*made)->stop();
    return status;
  }

  std::atomic<std::uint64_t> clock_{0};
  RecordingSink sink_{clock_};
  Pool pool_{kSimple, Pool::Backing::kShared};
};

TEST_F(MemoryFiles, MustBeMemfdsThatHoldTheRegion) {
  const Region region = pool_.regions().front();
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const char* transport : {"shm", "auto"}) {
    EXPECT_TRUE(register_at(transport, Role::kPrefill, region.memory_fd, 0));
    Status refused = register_at(transport, Role::kPrefill, null.get(), 0);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find("is no memfd"), std::string::npos) << refused.error().what;
    for (const std::uint64_t offset : {std::uint64_t{1}, ~std::uint64_t{0}}) {
      refused = register_at(transport, Role::kPrefill, region.memory_fd, offset);
      ASSERT_FALSE(refused) << offset;
      EXPECT_NE(refused.error().what.find("do not lie in a memfd of 4194304 bytes"),
                std::string::npos)
          << refused.error().what;
    }
  }
  EXPECT_TRUE(register_at("tcp", Role::kPrefill, null.get(), 0)) << "tcp does not look at it";
}

}  // namespace
}  // namespace kvferry::data_plane
