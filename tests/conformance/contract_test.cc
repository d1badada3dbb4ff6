// D1, D2, D4 and D5 of the transport contract, over every transport.
#include <gtest/gtest.h>

#include <algorithm>

#include "data_plane/factory.h"
#include "rig.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;

constexpr std::uint64_t kSession = 7;

class Contract : public testing::TestWithParam<Case> {
 protected:
  // Each ticket has one outcome, quiet follows unknown and nothing else.
  static void expect_contract(RecordingSink& sink) {
    for (const auto& [ticket, record] : sink.snapshot().tickets) {
      EXPECT_EQ(record.outcomes.size(), 1U) << "ticket " << ticket;
      EXPECT_EQ(record.quiets_before_outcome, 0U) << "ticket " << ticket;
      const bool unknown = record.outcomes.front() == WriteOutcome::kUnknown;
      EXPECT_LE(record.quiets, unknown ? 1U : 0U) << "ticket " << ticket;
    }
  }
};

std::vector<std::uint32_t> pages_to(std::uint32_t count) {
  std::vector<std::uint32_t> pages;
  for (std::uint32_t page = 0; page < count; ++page) pages.push_back(page);
  return pages;
}

class BlockedContract : public Contract {};

TEST_P(Contract, FullPagesLandAndAreTheSourcesBytes) {
  Rig rig(GetParam());
  rig.open(kSession);
  const std::uint32_t pages = 20;
  rig.grant(1, kSession, 3, 5, pages_to(pages));
  std::vector<Write> writes;
  for (std::uint32_t page = 0; page < pages; ++page) {
    for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
      writes.push_back(rig.write(3, 5, region, page));
    }
  }
  rig.post(kSession, writes);
  ASSERT_TRUE(rig.source_sink().wait(
      [&](const auto& state) { return state.completed() == writes.size(); }));
  const auto source = rig.source_sink().snapshot();
  const auto target = rig.target_sink().snapshot();
  ASSERT_EQ(target.landings.size(), writes.size());
  for (const auto& [landing, order] : target.landings) {
    EXPECT_EQ(landing.session, SessionEpoch(kSession));
    EXPECT_EQ(landing.slot, GrantSlot(3));
    EXPECT_EQ(landing.generation, Generation(5));
    EXPECT_EQ(landing.length, rig.shape().item_bytes);
    EXPECT_EQ(source.tickets.at(landing.ticket.value()).outcomes.front(), WriteOutcome::kLanded);
    // The target knows of a landing before its writer does.
    EXPECT_LT(order, source.tickets.at(landing.ticket.value()).outcome_order);
  }
  for (const Write& write : writes) {
    EXPECT_TRUE(rig.item_equals_source(write.target_region.value(), write.target_item));
  }
  EXPECT_TRUE(rig.item_is(0, pages, kCanary));
  EXPECT_TRUE(rig.fence(1));
  expect_contract(rig.source_sink());
  EXPECT_TRUE(source.lane_failures.empty());
}

TEST_P(Contract, PartialPagesLandWhereTheyBelongAndNowhereElse) {
  Rig rig(GetParam());
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {4});
  const std::uint64_t bytes = rig.shape().item_bytes;
  Write middle = rig.write(0, 1, 0, 4);
  middle.source_offset += 100;
  middle.offset_in_item = 100;
  middle.length = bytes - 301;
  EXPECT_EQ(rig.send(kSession, middle), WriteOutcome::kLanded);
  const auto target = rig.target_pool().item(0, 4);
  const auto source = rig.source_pool().item(0, 4);
  EXPECT_EQ(target[99], kCanary);
  EXPECT_TRUE(std::equal(target.begin() + 100, target.end() - 201, source.begin() + 100));
  EXPECT_TRUE(std::all_of(target.end() - 201, target.end(),
                          [](std::byte byte) { return byte == kCanary; }));
}

TEST_P(Contract, WhatIsOutsideTheGrantIsRefusedUntouched) {
  Rig rig(GetParam());
  rig.open(kSession);
  const std::uint64_t bytes = rig.shape().item_bytes;
  rig.grant(1, kSession, 2, 9, {1, 2}, bytes / 2);  // the first half of each item is this writer's
  const auto refused = [&](auto&& spoil) {
    Write write = rig.write(2, 9, 0, 1);
    write.length = bytes / 2;
    spoil(write);
    return rig.send(kSession, write) == WriteOutcome::kRefused;
  };
  EXPECT_TRUE(refused([](Write& w) { w.target_item = 3; })) << "a page not granted";
  EXPECT_TRUE(refused([&](Write& w) { w.target_item = rig.shape().items; })) << "past the region";
  EXPECT_TRUE(refused([](Write& w) { w.target_item = ~0U; })) << "far past the region";
  EXPECT_TRUE(refused([&](Write& w) { w.offset_in_item = bytes / 2; })) << "another's slice";
  EXPECT_TRUE(refused([](Write& w) { w.offset_in_item = 1; })) << "into another's slice";
  EXPECT_TRUE(refused([&](Write& w) { w.length = bytes; })) << "across the slice";
  EXPECT_TRUE(refused([&](Write& w) { w.offset_in_item = bytes - 1; })) << "across the item";
  EXPECT_TRUE(refused([](Write& w) { w.offset_in_item = ~0ULL - 10; })) << "overflow";
  EXPECT_TRUE(refused([&](Write& w) { w.target_region = RegionId(rig.shape().regions); }))
      << "a region that is not registered";
  EXPECT_TRUE(refused([](Write& w) { w.slot = GrantSlot(3); })) << "a slot not granted";
  EXPECT_TRUE(refused([](Write& w) { w.slot = GrantSlot(63); })) << "the last slot";
  EXPECT_TRUE(refused([](Write& w) { w.slot = GrantSlot(~0U); })) << "no slot at all";
  EXPECT_TRUE(refused([](Write& w) { w.generation = Generation(8); })) << "an old generation";
  EXPECT_TRUE(refused([](Write& w) { w.generation = Generation(10); })) << "a coming generation";
  EXPECT_TRUE(refused([](Write& w) { w.generation = Generation(9 + (1ULL << 63)); }))
      << "a generation whose double wraps";
  EXPECT_TRUE(refused([](Write& w) { w.source_region = RegionId(99); })) << "no such source";
  EXPECT_TRUE(refused([](Write& w) { w.source_offset = ~0ULL - 4; })) << "source overflow";
  // And after all of that the grant still works. A page that a test has looked at gets no more
  // writes under the same grant: only a new grant orders the two for the receiving thread.
  for (std::uint32_t page = 0; page < rig.shape().items; ++page) {
    EXPECT_TRUE(page == 2 || rig.item_is(0, page, kCanary)) << "page " << page;
  }
  Write good = rig.write(2, 9, 0, 2);
  good.length = bytes / 2;
  EXPECT_EQ(rig.send(kSession, good), WriteOutcome::kLanded);
  const auto rest = rig.target_pool().item(0, 2).subspan(bytes / 2);
  EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == kCanary; }));
  expect_contract(rig.source_sink());
  EXPECT_TRUE(rig.target_sink().snapshot().lane_failures.empty());
}

// The regions of a pool lie side by side, so a length that is trusted would reach the next one.
TEST_P(Contract, AWriteDoesNotCrossFromRegionToRegion) {
  Rig rig(GetParam());
  rig.open(kSession);
  const std::uint64_t bytes = rig.shape().item_bytes;
  const std::uint32_t last = rig.shape().items - 1;
  rig.grant(1, kSession, 0, 1, {0, last});
  Write across = rig.write(0, 1, 0, last);
  across.source_offset = 0;
  across.length = bytes + 1;
  EXPECT_EQ(rig.send(kSession, across), WriteOutcome::kRefused) << "one byte";
  across.ticket = TicketId(900);
  across.offset_in_item = bytes / 2;
  across.length = bytes;
  EXPECT_EQ(rig.send(kSession, across), WriteOutcome::kRefused) << "half an item";
  across.ticket = TicketId(901);
  across.offset_in_item = 0;
  across.length = ~0ULL - bytes / 2;
  EXPECT_EQ(rig.send(kSession, across), WriteOutcome::kRefused) << "overflow";
  EXPECT_TRUE(rig.item_is(0, last, kCanary));
  EXPECT_TRUE(rig.shape().regions == 1 || rig.item_is(1, 0, kCanary));
}

TEST_P(Contract, SlotsBelongToTheirSession) {
  Rig rig(GetParam());
  rig.open(kSession);
  rig.open(kSession + 1);
  rig.grant(1, kSession, 0, 1, {0, 1});
  EXPECT_EQ(rig.send(kSession + 1, rig.write(0, 1, 0, 0)), WriteOutcome::kRefused);
  EXPECT_TRUE(rig.item_is(0, 0, kCanary));
  EXPECT_EQ(rig.send(kSession, rig.write(0, 1, 0, 1)), WriteOutcome::kLanded);
  EXPECT_EQ(rig.send(kSession + 9, rig.write(0, 1, 0, 0)), WriteOutcome::kRefused)
      << "never opened";
}

TEST_P(Contract, AnotherTicketForAClaimedRangeIsRefused) {
  Rig rig(GetParam());
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0});
  Write first = rig.write(0, 1, 0, 0);
  first.length = 1'000;
  ASSERT_EQ(rig.send(kSession, first), WriteOutcome::kLanded);
  Write second = rig.write(0, 1, 0, 0);
  second.offset_in_item = 999;
  second.source_offset = 5;
  second.length = 500;
  EXPECT_EQ(rig.send(kSession, second), WriteOutcome::kRefused);
  EXPECT_FALSE(rig.source_sink().is_fenced(second.ticket.value()));
  EXPECT_EQ(rig.target_pool().item(0, 0)[999], rig.source_pool().item(0, 0)[999]);
  EXPECT_EQ(rig.target_pool().item(0, 0)[1'000], kCanary);
  // What was refused claimed nothing.
  second.ticket = TicketId(900);
  second.offset_in_item = 1'200;
  EXPECT_EQ(rig.send(kSession, second), WriteOutcome::kLanded);
}

TEST_P(BlockedContract, UnknownIsFollowedByQuiet) {
  Rig::Tuning tuning;
  tuning.with_relay = true;
  tuning.write_timeout_ms = 200;
  tuning.lane_timeout_ms = 120'000;  // so that it is the deadline of the write that ends it
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0, 1});
  ASSERT_EQ(rig.send(kSession, rig.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  rig.block(true);
  const Write write = rig.write(0, 1, 0, 1);
  EXPECT_EQ(rig.send(kSession, write), WriteOutcome::kUnknown);
  EXPECT_FALSE(rig.source_sink().snapshot().is_quiet(write.ticket.value()));
  rig.block(false);
  EXPECT_TRUE(rig.source_sink().wait_quiet(write.ticket.value()));
  expect_contract(rig.source_sink());
}

TEST_P(BlockedContract, ClosingASessionEndsWhatIsPending) {
  Rig::Tuning tuning;
  tuning.with_relay = true;
  tuning.max_inflight_bytes = 256U << 10;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, pages_to(30));
  ASSERT_EQ(rig.send(kSession, rig.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  rig.block(true);
  std::vector<Write> writes;
  for (std::uint32_t page = 1; page < 30; ++page) writes.push_back(rig.write(0, 1, 0, page));
  rig.post(kSession, writes);
  rig.close(kSession);
  ASSERT_TRUE(rig.source_sink().wait([&](const auto& state) {
    return std::all_of(writes.begin(), writes.end(), [&](const Write& write) {
      return state.has_outcome(write.ticket.value()) &&
             (state.is_quiet(write.ticket.value()) ||
              state.tickets.at(write.ticket.value()).outcomes.front() != WriteOutcome::kUnknown);
    });
  }));
  rig.block(false);
  EXPECT_TRUE(rig.fence(1)) << "a fence ends also when its session is gone";
  expect_contract(rig.source_sink());
}

TEST_P(BlockedContract, GivingUpRefusesWhatIsQueuedAndLetsNoLaterByteCount) {
  Rig::Tuning tuning;
  tuning.with_relay = true;
  tuning.max_inflight_bytes = 300U << 10;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, pages_to(30));
  rig.grant(2, kSession, 1, 1, {40 % rig.shape().items, 39});
  ASSERT_EQ(rig.send(kSession, rig.write(0, 1, 0, 0)), WriteOutcome::kLanded);
  rig.block(true);
  std::vector<Write> writes;
  for (std::uint32_t page = 1; page < 30; ++page) {
    for (std::uint32_t region = 0; region < rig.shape().regions; ++region) {
      writes.push_back(rig.write(0, 1, region, page));
    }
  }
  rig.post(kSession, writes);
  rig.source().give_up(SessionEpoch(kSession), GrantSlot(0), Generation(1));
#if !defined(__SANITIZE_THREAD__)
  // By design the source may be reused while a sender still reads it; the frame is then void.
  Pool before(rig.shape());
  before.fill_pattern(1);
  rig.source_pool().fill(std::byte{0x55});
#endif
  const Write other = rig.write(1, 1, 0, 39);
  rig.post(kSession, {other});
  rig.block(false);
  ASSERT_TRUE(rig.source_sink().wait(
      [&](const auto& state) { return state.completed() == writes.size() + 2; }));
  EXPECT_EQ(rig.source_sink().outcome(other.ticket.value()), WriteOutcome::kLanded)
      << "another grant goes on";
  std::size_t refused = 0;
  for (const Write& write : writes) {
    const WriteOutcome outcome = rig.source_sink().outcome(write.ticket.value());
    refused += outcome == WriteOutcome::kRefused ? 1 : 0;
#if !defined(__SANITIZE_THREAD__)
    if (outcome != WriteOutcome::kLanded) continue;
    const auto old = before.item(write.target_region.value(), write.target_item);
    const auto now = rig.target_pool().item(write.target_region.value(), write.target_item);
    EXPECT_TRUE(std::equal(old.begin(), old.end(), now.begin()))
        << "landed with bytes of the page's next use";
#endif
  }
  EXPECT_GT(refused, 0U);
  expect_contract(rig.source_sink());
}

TEST_P(BlockedContract, StopEndsEverythingThatIsPending) {
  Rig::Tuning tuning;
  tuning.with_relay = true;
  Rig rig(GetParam(), tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, pages_to(10));
  rig.block(true);
  std::vector<Write> writes;
  for (std::uint32_t page = 0; page < 10; ++page) writes.push_back(rig.write(0, 1, 0, page));
  rig.post(kSession, writes);
  rig.source().stop();
  const auto state = rig.source_sink().snapshot();
  EXPECT_EQ(state.completed(), writes.size());
  for (const Write& write : writes) EXPECT_TRUE(state.is_quiet(write.ticket.value()));
  rig.target().fence(GrantId(1));
  rig.target().stop();
  EXPECT_EQ(rig.target_sink().snapshot().fences.at(1), 1U);
  expect_contract(rig.source_sink());
}

TEST_P(Contract, DeviceMemoryIsRefusedWithWhatCouldMoveIt) {
  Rig rig(GetParam());
  std::vector<Region> regions(rig.source_pool().regions().begin(),
                              rig.source_pool().regions().end());
  regions.front().memory = MemoryKind::kDevice;
  const auto status = rig.source().register_regions(regions);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, FailureCode::kInvalidArgument);
  EXPECT_NE(status.error().what.find("region 0 is device memory"), std::string::npos);
  EXPECT_NE(status.error().what.find("host memory"), std::string::npos);
}

TEST_P(Contract, AnEpochIsOpenedOnce) {
  Rig rig(GetParam());
  rig.open(kSession);
  SessionLink link;
  link.epoch = SessionEpoch(kSession);
  link.peer_blob = rig.target().local_blob();
  EXPECT_FALSE(rig.source().open_session(link));
  EXPECT_FALSE(rig.target().open_session(link));
  link.epoch = SessionEpoch(kSession + 1);
  link.peer_blob = {1, 2, 3};
  EXPECT_FALSE(rig.source().open_session(link));
}

constexpr auto kName = [](const auto& shown) { return case_name(shown.param); };
INSTANTIATE_TEST_SUITE_P(All, Contract, testing::ValuesIn(all_cases()), kName);
INSTANTIATE_TEST_SUITE_P(All, BlockedContract, testing::ValuesIn(blockable_cases()), kName);

TEST(Factory, NamesWhatItKnows) {
  std::atomic<std::uint64_t> clock{0};
  RecordingSink sink(clock);
  EXPECT_EQ(transport_names(), (std::vector<std::string_view>{"auto", "shm", "tcp"}));
  const auto made = make_transport("warp", TransportConfig(), sink);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().what.find("tcp"), std::string::npos);
  TransportConfig config;
  config.role = Role::kDecode;
  config.host = "0.0.0.0";
  EXPECT_FALSE(make_transport("tcp", config, sink)) << "a wildcard can't be advertised";
  config.advertise_host = "127.0.0.1";
  EXPECT_TRUE(make_transport("tcp", config, sink));
}

// Faults that only the memory fabric can be told to have.
TEST(MemoryFaults, ASecondCopyIsAnsweredWithTheFirstOnesOutcome) {
  Rig rig(Case{Kind::kMemory, kSimple});
  rig.open(kSession);
  rig.fabric().duplicate_writes(true);
  rig.fabric().reorder_writes(42);
  rig.grant(1, kSession, 0, 1, pages_to(60));
  std::vector<Write> writes;
  for (std::uint32_t page = 0; page < 60; ++page) writes.push_back(rig.write(0, 1, 0, page));
  rig.post(kSession, writes);
  ASSERT_TRUE(rig.source_sink().wait(
      [&](const auto& state) { return state.completed() == writes.size(); }));
  rig.source().stop();
  EXPECT_EQ(rig.fabric().differing_answers(), 0U);
  EXPECT_EQ(rig.target_sink().snapshot().landings.size(), writes.size());
  for (const auto& [ticket, record] : rig.source_sink().snapshot().tickets) {
    EXPECT_EQ(record.outcomes, std::vector<WriteOutcome>{WriteOutcome::kLanded});
  }
}

TEST(MemoryFaults, ALostAnswerBecomesUnknownThenQuiet) {
  Rig::Tuning tuning;
  tuning.write_timeout_ms = 100;
  Rig rig(Case{Kind::kMemory, kSimple}, tuning);
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0});
  rig.fabric().drop_answers(1);
  const Write write = rig.write(0, 1, 0, 0);
  EXPECT_EQ(rig.send(kSession, write), WriteOutcome::kUnknown);
  EXPECT_TRUE(rig.source_sink().wait_quiet(write.ticket.value()));
  EXPECT_EQ(rig.target_sink().snapshot().landings.size(), 1U);
}

TEST(MemoryFaults, ABrokenCopyIsTornAtTheTargetAndUnknownAtTheSource) {
  Rig rig(Case{Kind::kMemory, kSimple});
  rig.open(kSession);
  rig.grant(1, kSession, 0, 1, {0});
  rig.fabric().stall_copies(true);
  const Write write = rig.write(0, 1, 0, 0);
  rig.post(kSession, {write});
  while (rig.fabric().stalled_copies() == 0) std::this_thread::yield();
  rig.fabric().break_stalled();
  EXPECT_TRUE(rig.source_sink().wait_quiet(write.ticket.value()));
  EXPECT_EQ(rig.source_sink().outcome(write.ticket.value()), WriteOutcome::kUnknown);
  const auto state = rig.target_sink().snapshot();
  ASSERT_EQ(state.torn.size(), 1U);
  EXPECT_EQ(state.torn.front().ticket, write.ticket);
  EXPECT_TRUE(state.landings.empty());
}

}  // namespace
}  // namespace kvferry::data_plane
