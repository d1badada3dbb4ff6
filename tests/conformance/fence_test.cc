// D3 of the transport contract: after fence_done no byte of the grant lands, whatever the writer
// does.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "endless_writer.h"
#include "rig.h"
#include "run_length.h"
#include "stale_writes.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;

constexpr std::uint64_t kSession = 11;

class Fence : public testing::TestWithParam<Case> {};
class BlockedFence : public Fence {};

TEST_P(Fence, EndsWithoutAnyTraffic) {
  Rig rig(GetParam());
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0});
  EXPECT_TRUE(rig.fence(1));
  EXPECT_TRUE(rig.fence(77)) << "a grant that nobody opened";
  EXPECT_EQ(rig.target_sink().snapshot().fences.at(1), 1U);
  const Write late = rig.write(0, 1, 0, 0);
  EXPECT_EQ(rig.send(kSession, late), WriteOutcome::kRefused);
  EXPECT_TRUE(rig.source_sink().is_fenced(late.ticket.value())) << "the refusal says why";
  EXPECT_TRUE(rig.item_is(0, 0, kCanary));
  rig.grant(2, kSession, 0, 2, {0});
  EXPECT_EQ(rig.send(kSession, rig.write(0, 1, 0, 0)), WriteOutcome::kRefused) << "the old life";
  EXPECT_EQ(rig.send(kSession, rig.write(0, 2, 0, 0)), WriteOutcome::kLanded);
}

TEST_P(Fence, CoversEveryWritersSlot) {
  Rig rig(GetParam());
  rig.open(kSession);
  rig.open(kSession + 1);
  const std::uint64_t bytes = rig.shape().item_bytes;
  std::vector<SlotGrant> slots;
  for (std::uint32_t i = 0; i < 2; ++i) {
    slots.push_back(SlotGrant{SessionEpoch(kSession + i), GrantSlot(i), Generation(1),
                              layout::GrantExtent({{RegionId(0), i * bytes / 2, bytes / 2, 1, 0}},
                                                  {PageIndex(0)}, {}, -1, {}, {})});
  }
  rig.target().open_grant(GrantId(1), std::move(slots));
  ASSERT_TRUE(rig.fence(1));
  for (std::uint32_t i = 0; i < 2; ++i) {
    Write write = rig.write(i, 1, 0, 0);
    write.offset_in_item = i * bytes / 2;
    write.length = bytes / 2;
    EXPECT_EQ(rig.send(kSession + i, write), WriteOutcome::kRefused);
  }
  EXPECT_TRUE(rig.item_is(0, 0, kCanary));
}

TEST_P(Fence, EndsWhenTheSessionIsGone) {
  Rig rig(GetParam());
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0});
  rig.close(kSession);
  EXPECT_TRUE(rig.fence(1));
  rig.grant(2, kSession, 0, 2, {0});
  EXPECT_TRUE(rig.fence(2)) << "granted after its session had ended";
}

TEST_P(BlockedFence, EndsWhileAWriterIsStoppedInMidFrame) {
  Rig::Tuning tuning;
  tuning.with_relay = true;
  tuning.write_timeout_ms = 100'000;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0});
  rig.block(true);
  const Write write = rig.write(0, 1, 0, 0);
  rig.post(kSession, {write});
  if (GetParam().kind == Kind::kMemory) {
    while (rig.fabric().stalled_copies() == 0) std::this_thread::yield();
  }
  ASSERT_TRUE(rig.fence(1));
  for (const Region& region : rig.target_pool().regions()) {
    std::fill_n(region.base, region.item_bytes, std::byte{0x11});
  }
  rig.block(false);
  ASSERT_TRUE(rig.source_sink().wait_outcome(write.ticket.value()));
  EXPECT_NE(rig.source_sink().outcome(write.ticket.value()), WriteOutcome::kLanded);
  EXPECT_TRUE(rig.item_is(0, 0, std::byte{0x11}));
  EXPECT_TRUE(rig.target_sink().snapshot().torn.empty()) << "its grant was over";
}

void refill(Rig& rig, std::uint32_t page, std::byte value) {
  for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
    const auto item = rig.target_pool().item(region, page);
    std::fill(item.begin(), item.end(), value);
  }
}

TEST_P(Fence, LetsNoLateByteThroughUnderAStreamOfStaleWrites) {
  Rig::Tuning tuning;
  tuning.frame_bytes = 32U << 10;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  const std::uint64_t releases = by_length(400, 20'000);
  {
    EndlessWriter writer(rig, kSession);
    const auto late =
        late_pages(rig, kSession, releases, [&](std::uint32_t slot, std::uint64_t generation) {
          writer.set_generation(slot, generation);
        });
    ASSERT_TRUE(late);
    EXPECT_EQ(*late, 0U);
  }
  EXPECT_GE(rig.target_sink().snapshot().landings.size(), releases);
  EXPECT_TRUE(rig.source_sink().snapshot().lane_failures.empty());
}

TEST_P(Fence, ManyAtOnceEachEndOnceWhileLanesRace) {
  Rig::Tuning tuning;
  tuning.lanes = 4;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  constexpr std::uint32_t kGrants = 32;
  for (std::uint64_t round = 1; round <= 10; ++round) {
    std::vector<Write> writes;
    for (std::uint32_t slot = 0; slot < kGrants; ++slot) {
      rig.grant(round * 100 + slot, kSession, slot, round, {slot});
      for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
        writes.push_back(rig.write(slot, round, region, slot));
      }
    }
    rig.post(kSession, writes);
    for (std::uint32_t slot = 0; slot < kGrants; ++slot) {
      rig.target().fence(GrantId(round * 100 + slot));
    }
    ASSERT_TRUE(rig.target_sink().wait(
        [&](const auto& state) { return state.fences.size() == round * kGrants; }));
    const std::byte mine{static_cast<std::uint8_t>(round)};
    for (std::uint32_t slot = 0; slot < kGrants; ++slot) refill(rig, slot, mine);
    ASSERT_TRUE(rig.source_sink().wait(
        [&](const auto& state) { return state.completed() == round * writes.size(); }));
    for (std::uint32_t slot = 0; slot < kGrants; ++slot) {
      for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
        ASSERT_TRUE(rig.item_is(region, slot, mine));
      }
    }
  }
  for (const auto& [grant, count] : rig.target_sink().snapshot().fences) EXPECT_EQ(count, 1U);
}

constexpr auto kName = [](const auto& shown) { return case_name(shown.param); };
INSTANTIATE_TEST_SUITE_P(All, Fence, testing::ValuesIn(all_cases()), kName);
INSTANTIATE_TEST_SUITE_P(All, BlockedFence, testing::ValuesIn(blockable_cases()), kName);

}  // namespace
}  // namespace kvferry::data_plane
