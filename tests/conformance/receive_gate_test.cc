// The receive gate by itself: what a fence waits for, and what it does not.
#include "data_plane/receive_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <thread>

#include "data_plane/incoming_frame.h"
#include "recording_sink.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint64_t kItemBytes = 4'096;
const SessionEpoch kEpoch(5);

class Gate : public testing::Test {
 protected:
  Gate() : memory_(kItemBytes * 4, std::byte{0xEE}) {
    Region region;
    region.base = memory_.data();
    region.item_bytes = kItemBytes;
    region.item_count = 4;
    gate_.register_regions(std::span(&region, 1));
    slots_ = gate_.open_session(kEpoch);
  }

  void grant(std::uint64_t grant, std::uint32_t slot, std::uint64_t generation,
             std::uint32_t page) {
    std::vector<SlotGrant> slots;
    slots.push_back(SlotGrant{kEpoch, GrantSlot(slot), Generation(generation),
                              layout::GrantExtent({{RegionId(0), 0, kItemBytes, 1, 0}},
                                                  {PageIndex(page)}, {}, -1, {}, {})});
    gate_.open_grant(GrantId(grant), std::move(slots));
  }
  static IncomingWrite write_of(std::uint64_t ticket, std::uint32_t page) {
    return IncomingWrite{TicketId(ticket), RegionId(0), page, 0, kItemBytes};
  }
  bool is_fenced(std::uint64_t grant) { return sink_.snapshot().fences.contains(grant); }
  void begin(IncomingFrame& frame, ReceiveGate::Reader& reader, std::uint32_t slot,
             std::uint64_t generation, const IncomingWrite& write) {
    frame.begin(reader, slots_, GrantSlot(slot), Generation(generation), std::span(&write, 1));
  }

  std::atomic<std::uint64_t> clock_{0};
  RecordingSink sink_{clock_};
  std::vector<std::byte> memory_;
  ReceiveGate gate_{16, sink_};
  std::shared_ptr<SessionSlots> slots_;
};

// Fills the first `bytes` of the parts and says so.
auto filler(std::byte value, std::uint64_t bytes) {
  return [value, bytes](std::span<const iovec> parts) -> std::ptrdiff_t {
    const std::uint64_t length = std::min<std::uint64_t>(bytes, parts.front().iov_len);
    std::memset(parts.front().iov_base, static_cast<int>(value), length);
    return static_cast<std::ptrdiff_t>(length);
  };
}

TEST_F(Gate, AFenceThatNobodyCopiesUnderIsDoneAtOnce) {
  grant(1, 0, 1, 0);
  ReceiveGate::Reader reader(gate_);
  gate_.fence(GrantId(1));
  EXPECT_TRUE(is_fenced(1)) << "no other thread has to run for it";
  gate_.fence(GrantId(7));
  EXPECT_TRUE(is_fenced(7)) << "a grant of no slot";
}

TEST_F(Gate, AFenceWaitsForACopyThatIsUnderWayAndForNoOther) {
  grant(1, 0, 1, 0);
  grant(2, 1, 1, 1);
  ReceiveGate::Reader reader(gate_);
  IncomingFrame frame;
  begin(frame, reader, 0, 1, write_of(1, 0));
  std::promise<void> in_copy;
  std::promise<void> go_on;
  std::thread receiver([&] {
    frame.move_part(reader, [&](std::span<const iovec> parts) -> std::ptrdiff_t {
      in_copy.set_value();
      go_on.get_future().wait();
      return filler(std::byte{0xAB}, kItemBytes)(parts);
    });
  });
  in_copy.get_future().wait();
  gate_.fence(GrantId(2));
  ASSERT_TRUE(sink_.wait_fence(2)) << "a copy under another slot is not waited for";
  gate_.fence(GrantId(1));
  // Gives the fence thread every chance to report too early.
  for (int i = 0; i < 1'000; ++i) std::this_thread::yield();
  EXPECT_FALSE(is_fenced(1)) << "a copy was under way";
  go_on.set_value();
  ASSERT_TRUE(sink_.wait_fence(1));
  receiver.join();
  frame.finish(true);
  std::vector<WriteResult> results;
  EXPECT_TRUE(frame.answers(results));
  EXPECT_EQ(results, std::vector{WriteResult::kTorn}) << "no landing after the fence";
  EXPECT_TRUE(sink_.snapshot().landings.empty());
}

TEST_F(Gate, AFenceIsNotHeldByClaimsNorByAReaderThatMarksAgainAndAgain) {
  grant(1, 0, 1, 0);
  ReceiveGate::Reader idle(gate_);
  IncomingFrame stopped;
  begin(stopped, idle, 0, 1, write_of(1, 0));
  stopped.move_part(idle, filler(std::byte{0xAB}, 100));
  // Another thread writes under the same slot number without a pause; the fence never sees it idle.
  std::atomic<bool> stopping{false};
  std::thread busy([&] {
    ReceiveGate::Reader reader(gate_);
    while (!stopping) MarkScope mark(reader, *slots_, GrantSlot(0), Generation(1));
  });
  for (std::uint64_t i = 1; i <= 200; ++i) {
    gate_.fence(GrantId(i));
    EXPECT_TRUE(sink_.wait_fence(i));
    grant(i + 1, 0, i + 1, 0);
  }
  stopping = true;
  busy.join();
  stopped.move_part(idle, filler(std::byte{0xCD}, kItemBytes));
  EXPECT_EQ(memory_[100], std::byte{0xEE}) << "the rest goes to scrap";
  stopped.abandon();
  EXPECT_TRUE(sink_.snapshot().torn.empty());
}

// A copy that is under way never overlaps with the time after its fence, however the two race.
TEST_F(Gate, NoCopyRunsAfterItsFence) {
  std::atomic<std::uint64_t> fenced{0};  // generations up to this one are over
  std::atomic<std::uint64_t> open{1};
  std::atomic<std::uint64_t> late{0};
  std::atomic<std::uint64_t> copies{0};
  std::atomic<bool> stopping{false};
  grant(1, 0, 1, 0);
  std::vector<std::thread> receivers;
  for (int i = 0; i < 3; ++i) {
    receivers.emplace_back([&] {
      ReceiveGate::Reader reader(gate_);
      while (!stopping) {
        const std::uint64_t generation = open;
        MarkScope mark(reader, *slots_, GrantSlot(0), Generation(generation));
        if (!mark.is_live()) continue;
        for (int spin = 0; spin < 50; ++spin) late += fenced >= generation ? 1U : 0U;
        ++copies;
      }
    });
  }
  for (std::uint64_t i = 1; i <= 3'000; ++i) {
    gate_.fence(GrantId(i));
    ASSERT_TRUE(sink_.wait_fence(i));
    fenced = i;
    grant(i + 1, 0, i + 1, 0);
    open = i + 1;
  }
  stopping = true;
  for (std::thread& receiver : receivers) receiver.join();
  EXPECT_EQ(late, 0U);
  EXPECT_GT(copies, 0U);
}

TEST_F(Gate, StatesHowATicketOfALostLaneEnded) {
  grant(1, 0, 4, 0);
  ReceiveGate::Reader reader(gate_);
  const auto outcome = [&](std::uint64_t generation, std::uint64_t ticket) {
    return slots_->outcome_of(GrantSlot(0), Generation(generation), TicketId(ticket));
  };
  EXPECT_EQ(outcome(4, 1), WriteResult::kRefused) << "never claimed";
  IncomingFrame frame;
  begin(frame, reader, 0, 4, write_of(1, 0));
  EXPECT_EQ(outcome(4, 1), std::nullopt) << "being copied";
  frame.move_part(reader, filler(std::byte{0xAB}, kItemBytes));
  frame.finish(true);
  EXPECT_EQ(outcome(4, 1), WriteResult::kLanded);
  gate_.fence(GrantId(1));
  ASSERT_TRUE(sink_.wait_fence(1));
  EXPECT_EQ(outcome(4, 1), WriteResult::kLanded) << "known until the slot's next life";
  EXPECT_EQ(outcome(4, 2), WriteResult::kFenced);
  EXPECT_EQ(outcome(5, 2), WriteResult::kRefused);
  grant(2, 0, 5, 0);
  EXPECT_EQ(outcome(4, 1), WriteResult::kNotKnown);
  EXPECT_EQ(slots_->outcome_of(GrantSlot(99), Generation(1), TicketId(1)), WriteResult::kRefused);
}

TEST_F(Gate, AFenceAfterStopIsStillReported) {
  grant(1, 0, 1, 0);
  gate_.stop();
  gate_.fence(GrantId(1));
  EXPECT_TRUE(is_fenced(1));
}

}  // namespace
}  // namespace kvferry::data_plane
