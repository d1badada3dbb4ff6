// Aborts and clears from either side, at every stage of a room.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class AbortAt : public Scenario, public ::testing::WithParamInterface<Stage> {
 protected:
  // Whether the two have met, so that the one hears of the other's end.
  bool decode_reaches_prefill() const { return GetParam() > Stage::kGreeting; }
  bool prefill_reaches_decode() const { return GetParam() > Stage::kWaitingForPages; }
};

INSTANTIATE_TEST_SUITE_P(Stages, AbortAt, ::testing::ValuesIn(kStages),
                         [](const auto& stage) { return stage_name(stage.param); });

TEST_P(AbortAt, ByDecode) {
  engines();
  RoomPair pair = reach(GetParam());
  const bool too_late = GetParam() == Stage::kWaitingForConsumed;
  d().abort(pair.receiver);
  world.run_for(20);
  if (GetParam() == Stage::kWaitingForSender) {
    // The sender that comes after the abort hears of it at once.
    pair.sender = send(p(), name_room(1), {4, 5, 6});
    world.run_for(10);
  }
  if (too_late) {
    expect_success(d(), pair.receiver);
  } else {
    expect_failed(d(), pair.receiver, FailureCode::kAborted);
    if (decode_reaches_prefill()) {
      expect_failed(p(), pair.sender, FailureCode::kAborted);
      EXPECT_EQ(p().cell(pair.sender).failure->what, "the client went away");
      EXPECT_EQ(p().cell(pair.sender).failure->where, FailureWhere::kPeer);
    }
  }
  heal();
  world.run_for(2'500);
  EXPECT_TRUE(is_terminal(p().poll(pair.sender)));
  if (GetParam() == Stage::kFencing || GetParam() == Stage::kWaitingForDone ||
      GetParam() == Stage::kWriting) {
    EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  }
  expect_rest();
}

TEST_P(AbortAt, ByPrefill) {
  engines();
  RoomPair pair = reach(GetParam());
  if (GetParam() == Stage::kWaitingForSender) {
    pair.sender = p().open(name_room(1));
  }
  p().abort(pair.sender);
  world.run_for(20);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
  if (GetParam() == Stage::kWaitingForConsumed) {
    // The one asymmetry: prefill failed after its Done, and decode's Success stands.
    expect_success(d(), pair.receiver);
  } else if (GetParam() == Stage::kWaitingForPages) {
    d().give(pair.receiver, {1, 2, 3});
    world.run_for(20);
    expect_failed(d(), pair.receiver, FailureCode::kAborted);
  } else if (prefill_reaches_decode()) {
    expect_failed(d(), pair.receiver, FailureCode::kAborted);
    EXPECT_EQ(d().cell(pair.receiver).failure->what, "the client went away");
    EXPECT_EQ(d().cell(pair.receiver).failure->peer, "p0:1");
  }
  heal();
  world.run_for(2'500);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)));
  expect_rest();
}

TEST_P(AbortAt, ByBothAtOnce) {
  engines();
  const RoomPair pair = reach(GetParam());
  d().abort(pair.receiver);
  if (pair.sender != 0) {
    p().abort(pair.sender);
  }
  world.run_for(20);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)));
  expect_rest();
}

TEST_P(AbortAt, TwiceAndAfterTheEnd) {
  engines();
  const RoomPair pair = reach(GetParam());
  d().abort(pair.receiver, "first");
  d().receive(ReceiverAborted{ReceiverId(pair.receiver), Failure{}});
  world.run_for(20);
  d().receive(ReceiverAborted{ReceiverId(pair.receiver), Failure{}});
  if (pair.sender != 0) {
    p().abort(pair.sender, "later");
    p().receive(SenderAborted{SenderId(pair.sender), Failure{}});
  }
  world.run_for(20);
  if (GetParam() != Stage::kWaitingForConsumed) {
    EXPECT_EQ(d().cell(pair.receiver).failure->what, "first");
  }
  expect_rest();
}

TEST_P(AbortAt, ClearedByDecode) {
  engines();
  const RoomPair pair = reach(GetParam());
  d().clear(pair.receiver);
  world.run_for(20);
  if (decode_reaches_prefill() && pair.sender != 0 && GetParam() != Stage::kWaitingForConsumed) {
    expect_failed(p(), pair.sender, FailureCode::kAborted);
  }
  heal();
  world.run_for(2'500);
  EXPECT_TRUE(d().pages_out().empty()) << "an unread Success gives its pages back, too";
  EXPECT_EQ(d().cell(pair.receiver).released.size(),
            GetParam() == Stage::kWaitingForPages ? 0U : 1U);
  expect_rest();
}

TEST_P(AbortAt, ClearedByPrefill) {
  engines();
  const RoomPair pair = reach(GetParam());
  if (pair.sender == 0) {
    return;
  }
  p().clear(pair.sender);
  world.run_for(20);
  if (prefill_reaches_decode() && GetParam() != Stage::kWaitingForConsumed) {
    expect_failed(d(), pair.receiver, FailureCode::kAborted);
  }
  heal();
  world.run_for(2'500);
  EXPECT_TRUE(p().pages_out().empty());
  expect_rest();
}

// An abort repeats until the peer's core has processed it (rule 12), and the fence does not end
// that.
TEST_P(AbortAt, TheWordOfItMayBeLost) {
  engines();
  const RoomPair pair = reach(GetParam());
  const auto before = world.links().on_frame;
  std::uint32_t losses = 3;
  world.links().on_frame = [&](const FrameOnLink& frame) {
    if (frame.carries<wire::Abort>() && losses > 0) {
      --losses;
      return FrameFate::kDrop;
    }
    return before ? before(frame) : FrameFate::kDeliver;
  };
  d().abort(pair.receiver);
  world.run_for(900);
  if (decode_reaches_prefill() && pair.sender != 0 && GetParam() != Stage::kWaitingForConsumed) {
    EXPECT_EQ(losses, 0U);
    expect_failed(p(), pair.sender, FailureCode::kAborted);
  }
  expect_rest();
}

class AbortDialogue : public Scenario {};

TEST_F(AbortDialogue, OfARoomThatIsWrittenReadsLikeThis) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.take_trace();
  d().abort(pair.receiver);
  world.run_for(50);
  EXPECT_EQ(world.take_trace(), R"(
d0 fences
d0 > p0 abort
d0 room 1 releases 3 pages
d0 > p0 fenced
p0 room 1 Failed aborted
p0 room 1 releases 3 pages
)");
  // The writes come late, are refused, and only then is the writer quiet.
  heal();
  world.run_for(50);
  EXPECT_EQ(world.take_trace(), R"(
p0 > d0 drained
)");
  EXPECT_EQ(world.fabric().refused_by_generation(), 7U);
  EXPECT_TRUE(d().memory().is_canary(1));
  expect_rest();
}

TEST_F(AbortDialogue, TheCallersCellWinsAgainstSuccess) {
  engines();
  const RoomPair pair = reach(Stage::kFencing);
  // The caller's compare-and-swap came first; its event is not here yet.
  d().win_cell(pair.receiver);
  heal();
  world.run_for(20);
  expect_failed(d(), pair.receiver, FailureCode::kAborted);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  d().receive(ReceiverAborted{ReceiverId(pair.receiver), *d().cell(pair.receiver).failure});
  world.run_for(20);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
  expect_rest();
}

TEST_F(AbortDialogue, TheSendersCellWinsAgainstSuccess) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForDone);
  p().win_cell(pair.sender);
  heal();
  world.run_for(500);
  expect_success(d(), pair.receiver);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
  p().receive(SenderAborted{SenderId(pair.sender), *p().cell(pair.sender).failure});
  expect_rest();
}

// Both sides of one room end; every other rank hears the same first cause (rule 17).
// Decode doesn't know yet who the prefill ranks are; they hear of it once the registry has
// answered.
TEST_F(AbortDialogue, BeforeTheRegistryAnswersReachesTheSenderAfterwards) {
  engines();
  transfer(name_room(9));
  const RoomPair pair = reach(Stage::kUnresolved);
  d().abort(pair.receiver);
  world.run_for(50);
  expect_status(p(), pair.sender, KvPoll::kBootstrapping);
  heal();
  world.run_for(50);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
  expect_rest();
}

// Two by two ranks in the midst of a room: p0 shares heads with d0 alone, p1 with d1.
class AbortOfTwoPairs : public AbortDialogue {
 protected:
  void start() {
    engines(2, 2);
    world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      receivers.push_back(receive(d(rank), name_room(1), {1, 2}));
      senders.push_back(send(p(rank), name_room(1), {7, 8}));
    }
    world.run_for(50);
  }

  std::vector<std::uint64_t> receivers;
  std::vector<std::uint64_t> senders;
};

TEST_F(AbortOfTwoPairs, AllRanksHearTheSameCause) {
  start();
  p(0).abort(senders[0], "the scheduler preempted it");
  world.run_for(20);
  expect_failed(d(0), receivers[0], FailureCode::kAborted);
  EXPECT_EQ(d(0).cell(receivers[0]).failure->what, "the scheduler preempted it");
  EXPECT_EQ(d(0).cell(receivers[0]).failure->rank, 0);
  expect_rest();
}

// The request is one, though its ranks are not all connected.
TEST_F(AbortOfTwoPairs, RanksThatShareNothingFailForTheSameCause) {
  start();
  d(0).abort(receivers[0], "the scheduler preempted it");
  world.run_for(20);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    expect_failed(p(rank), senders[rank], FailureCode::kAborted);
    expect_failed(d(rank), receivers[rank], FailureCode::kAborted);
  }
  EXPECT_EQ(d(1).cell(receivers[1]).failure->what, "the scheduler preempted it");
  expect_rest();
}

TEST_F(AbortDialogue, OneSenderTellsEveryDecodeRankTheCauseOfTheFirst) {
  engines(1, 2);
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  const std::uint64_t first = receive(d(0), name_room(1), {1, 2}, -1, 2);
  const std::uint64_t second = receive(d(1), name_room(1), {1, 2}, -1, 2);
  const std::uint64_t sender = send(p(), name_room(1), {7, 8});
  world.run_for(50);
  d(0).abort(first, "the client of rank 0 went away");
  world.run_for(20);
  expect_failed(p(), sender, FailureCode::kAborted);
  expect_failed(d(1), second, FailureCode::kAborted);
  EXPECT_EQ(d(1).cell(second).failure->what, "the client of rank 0 went away");
  expect_rest();
}

// One grant was there, the other comes after the end: it gets the first cause at once.
TEST_F(AbortDialogue, AGrantThatComesAfterASenderWithHalfItsGrantsFailed) {
  engines(1, 2);
  const std::uint64_t first = receive(d(0), name_room(1), {1, 2}, -1, 2);
  const std::uint64_t sender = send(p(), name_room(1), {7, 8});
  world.run_for(50);
  d(0).abort(first);
  world.run_for(20);
  expect_failed(p(), sender, FailureCode::kAborted);
  const std::uint64_t second = receive(d(1), name_room(1), {1, 2}, -1, 2);
  world.run_for(50);
  expect_failed(d(1), second, FailureCode::kAborted);
  expect_rest();
}

// The same before the sender is opened at all: what waits for it need not wait for its deadline.
TEST_F(AbortDialogue, AGrantThatWaitsForASenderHearsOfTheOtherRanksAbort) {
  engines(1, 2);
  const std::uint64_t first = receive(d(0), name_room(1), {1, 2}, -1, 2);
  const std::uint64_t second = receive(d(1), name_room(1), {1, 2}, -1, 2);
  world.run_for(50);
  d(0).abort(first);
  world.run_for(20);
  expect_failed(d(1), second, FailureCode::kAborted);
  const std::uint64_t sender = send(p(), name_room(1), {7, 8});
  world.run_for(20);
  expect_failed(p(), sender, FailureCode::kAborted);
  expect_rest();
}

}  // namespace
}  // namespace kvferry::core::fake
