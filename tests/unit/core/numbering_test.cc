// Numbers, windows, repetition and acknowledgement: on the outbox alone, and through a bad link.
#include <gtest/gtest.h>

#include "core/outbox.h"
#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class Numbering : public Scenario {
 protected:
  void expect_all_succeed(std::uint32_t count, std::int64_t within_ms) {
    std::vector<RoomPair> rooms;
    for (std::uint32_t i = 1; i <= count; ++i) {
      rooms.push_back({receive(d(), name_room(i), {i}), send(p(), name_room(i), {i})});
      world.run_for(3);
    }
    world.run_for(within_ms);
    for (const RoomPair& room : rooms) {
      expect_success(d(), room.receiver);
      expect_success(p(), room.sender);
    }
    expect_rest();
  }
};

TEST_F(Numbering, EveryRoomMessageMayBeLostOnce) {
  engines();
  world.links().drop<wire::Grant>();
  world.links().drop<wire::Done>();
  world.links().drop<wire::Consumed>();
  expect_all_succeed(1, 900);
}

TEST_F(Numbering, AThirdOfAllFramesIsLost) {
  options_.bootstrap_timeout_ms = 10'000;
  options_.transfer_timeout_ms = 30'000;
  engines();
  Prng prng(7);
  world.links().on_frame = [&](const FrameOnLink&) {
    return prng.below(3) == 0 ? FrameFate::kDrop : FrameFate::kDeliver;
  };
  expect_all_succeed(20, 25'000);
}

TEST_F(Numbering, EverythingComesTwiceAndInAnyOrder) {
  engines();
  Prng prng(8);
  world.links().latency = [&] { return milliseconds(1 + prng.below(30)); };
  world.links().on_frame = [](const FrameOnLink&) { return FrameFate::kDuplicate; };
  expect_all_succeed(20, 900);
  EXPECT_GT(p().counter("duplicate_messages"), 0U);
}

TEST_F(Numbering, AReplayOfEverythingChangesNothing) {
  engines();
  const RoomPair pair = transfer(name_room(1));
  const auto history = world.links().history();
  for (const FrameOnLink& old : history) {
    world.links().deliver_again(old);
  }
  world.run_for(100);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  EXPECT_EQ(p().counter("sessions_ended"), 0U);
  const RoomPair next = transfer(name_room(2));
  for (const FrameOnLink& old : history) {
    world.links().deliver_again(old);
  }
  world.run_for(100);
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_F(Numbering, ASmallWindowOnlySlowsThingsDown) {
  options_.send_window_messages = 2;
  engines();
  expect_all_succeed(20, 900);
}

TEST_F(Numbering, AnUnacknowledgedMessageIsRepeatedWithBackOff) {
  options_.transfer_timeout_ms = 60'000;
  engines();
  transfer(name_room(1));
  const std::size_t before = world.links().sent<wire::Grant>();
  // The grant arrives, and no frame of prefill says so; its heartbeats are heard.
  world.links().on_frame = [&](const FrameOnLink& frame) {
    return frame.carries<wire::Grant>() ? FrameFate::kDrop : FrameFate::kDeliver;
  };
  receive(d(), name_room(2), {9});
  world.run_for(10'000);
  // 100, 200, 400, 800, 1600, then each 2000 ms.
  const std::size_t sent = world.links().sent<wire::Grant>() - before;
  EXPECT_GE(sent, 8U);
  EXPECT_LE(sent, 10U);
}

TEST_F(Numbering, AFullQueueEndsTheSessionWithItsReason) {
  options_.send_window_messages = 1;
  options_.max_queued_messages = 3;
  engines();
  transfer(name_room(1));
  world.links().on_frame = [&](const FrameOnLink& frame) {
    return frame.from == &p() ? FrameFate::kDrop : FrameFate::kDeliver;
  };
  std::vector<std::uint64_t> receivers;
  for (std::uint32_t i = 2; i < 8; ++i) {
    receivers.push_back(receive(d(), name_room(i), {i + 10}));
  }
  world.run_for(50);
  expect_failed(d(), receivers[0], FailureCode::kQueueFull);
  EXPECT_EQ(d().cell(receivers[0]).failure->where, FailureWhere::kLocal)
      << "local exhaustion is never a dead peer (rule 17)";
  EXPECT_EQ(d().counter("message_queue_full"), 1U);
  expect_rest();
}

wire::Message word(std::uint64_t attempt) {
  wire::Drained drained;
  drained.attempt = AttemptId(attempt);
  return drained;
}

std::uint64_t attempt_in(const wire::Frame& frame, std::size_t at) {
  return std::get<wire::Drained>(frame.messages.at(at)).attempt.value();
}

TEST(OutboxAlone, UrgentOvertakesWhatHasNotLeft) {
  Outbox outbox{Options{}};
  ASSERT_TRUE(outbox.push(word(1), Urgency::kNormal, OwnerId(1)));
  ASSERT_TRUE(outbox.push(word(2), Urgency::kUrgent, OwnerId(2)));
  wire::Frame frame;
  bool urgent = false;
  ASSERT_TRUE(outbox.next_frame(Instant{}, frame, urgent));
  EXPECT_EQ(frame.sequence, 1U);
  ASSERT_EQ(frame.messages.size(), 2U);
  EXPECT_EQ(attempt_in(frame, 0), 2U);
  EXPECT_EQ(attempt_in(frame, 1), 1U);
  EXPECT_TRUE(urgent);
  EXPECT_FALSE(outbox.next_frame(Instant{}, frame, urgent));
}

TEST(OutboxAlone, TheWindowHoldsBackAndAcknowledgementsOpenIt) {
  Options options;
  options.send_window_messages = 2;
  Outbox outbox{options};
  for (std::uint64_t i = 1; i <= 3; ++i) {
    outbox.push(word(i), Urgency::kNormal, OwnerId(i));
  }
  wire::Frame frame;
  bool urgent = false;
  ASSERT_TRUE(outbox.next_frame(Instant{}, frame, urgent));
  EXPECT_EQ(frame.messages.size(), 2U);
  EXPECT_FALSE(outbox.next_frame(Instant{}, frame, urgent));
  std::vector<OwnerId> settled;
  EXPECT_TRUE(outbox.acknowledge(1, Instant{}, settled));
  EXPECT_EQ(settled, std::vector{OwnerId(1)});
  ASSERT_TRUE(outbox.next_frame(Instant{}, frame, urgent));
  EXPECT_EQ(frame.sequence, 3U);
  EXPECT_TRUE(outbox.acknowledge(1, Instant{}, settled)) << "an old acknowledgement is no news";
  EXPECT_FALSE(outbox.acknowledge(4, Instant{}, settled)) << "4 was never given";
  EXPECT_EQ(outbox.unacknowledged(), 2U);
  EXPECT_TRUE(outbox.has_unsettled(OwnerId(3)));
}

TEST(OutboxAlone, RepeatsFromTheOldestOnAndOnlyWhatIsOut) {
  Options options;
  options.control_frame_bytes = 1;  // Every message travels alone.
  Outbox outbox{options};
  wire::Frame frame;
  bool urgent = false;
  for (std::uint64_t i = 1; i <= 3; ++i) {
    outbox.push(word(i), Urgency::kNormal, OwnerId(i));
    ASSERT_TRUE(outbox.next_frame(Instant{}, frame, urgent));
    EXPECT_EQ(frame.sequence, i);
  }
  EXPECT_FALSE(outbox.repeat_frame(Instant{}, frame)) << "nothing was asked for again";
  outbox.rewind();
  ASSERT_TRUE(outbox.repeat_frame(Instant{}, frame));
  EXPECT_EQ(frame.sequence, 1U);
  std::vector<OwnerId> settled;
  outbox.acknowledge(2, Instant{}, settled);
  ASSERT_TRUE(outbox.repeat_frame(Instant{}, frame));
  EXPECT_EQ(frame.sequence, 3U);
  EXPECT_FALSE(outbox.repeat_frame(Instant{}, frame));
  outbox.acknowledge(3, Instant{}, settled);
  EXPECT_EQ(outbox.repeat_at(), Instant::max());
}

TEST(OutboxAlone, AnOwnerIsSettledWithItsLastMessage) {
  Outbox outbox{Options{}};
  outbox.push(word(1), Urgency::kNormal, OwnerId(9));
  wire::Frame frame;
  bool urgent = false;
  outbox.next_frame(Instant{}, frame, urgent);
  outbox.push(word(2), Urgency::kNormal, OwnerId(9));
  std::vector<OwnerId> settled;
  outbox.acknowledge(1, Instant{}, settled);
  EXPECT_TRUE(settled.empty());
  outbox.next_frame(Instant{}, frame, urgent);
  outbox.acknowledge(2, Instant{}, settled);
  EXPECT_EQ(settled.size(), 1U);
  EXPECT_FALSE(outbox.has_unsettled(OwnerId(9)));
}

TEST(ReceiveWindowAlone, TakesEachNumberOnce) {
  using Accept = ReceiveWindow::Accept;
  ReceiveWindow window(4);
  EXPECT_EQ(window.accept(2), Accept::kNew);
  EXPECT_EQ(window.processed_through(), 0U);
  EXPECT_EQ(window.accept(2), Accept::kDuplicate);
  EXPECT_EQ(window.accept(5), Accept::kTooFar);
  EXPECT_EQ(window.accept(1), Accept::kNew);
  EXPECT_EQ(window.processed_through(), 2U);
  EXPECT_EQ(window.accept(1), Accept::kDuplicate);
  EXPECT_EQ(window.accept(5), Accept::kNew);
  EXPECT_EQ(window.processed_through(), 2U);
}

}  // namespace
}  // namespace kvferry::core::fake
