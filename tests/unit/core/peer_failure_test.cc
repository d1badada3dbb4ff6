// Dead peers and passed deadlines, at every stage of a room.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class FailureAt : public Scenario, public ::testing::WithParamInterface<Stage> {};

INSTANTIATE_TEST_SUITE_P(Stages, FailureAt, ::testing::ValuesIn(kStages),
                         [](const auto& stage) { return stage_name(stage.param); });

// No state without a deadline: each room ends by itself, and says what it waited for.
TEST_P(FailureAt, EveryStageHasADeadline) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.run_for(options_.bootstrap_timeout_ms + options_.input_timeout_ms +
                options_.transfer_timeout_ms + 100);
  EXPECT_TRUE(is_terminal(d().cell(pair.receiver).status));
  const bool succeeded = GetParam() == Stage::kWaitingForConsumed;
  EXPECT_EQ(d().cell(pair.receiver).status == KvPoll::kSuccess, succeeded);
  if (pair.sender != 0) {
    EXPECT_EQ(p().cell(pair.sender).status, KvPoll::kFailed);
  }
  if (!succeeded) {
    EXPECT_FALSE(d().cell(pair.receiver).failure->what.empty());
  }
  if (GetParam() != Stage::kFencing) {
    EXPECT_EQ(d().pages_out().size(), succeeded ? 3U : 0U);
  }
  expect_rest();
}

TEST_P(FailureAt, PrefillDies) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.kill("p0");
  world.run_for(50);
  if (GetParam() == Stage::kWaitingForConsumed) {
    expect_success(d(), pair.receiver);
  } else if (GetParam() > Stage::kGreeting) {
    expect_failed(d(), pair.receiver, FailureCode::kPeerLost);
  }
  world.run_for(1'100);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)));
  expect_rest();
}

TEST_P(FailureAt, PrefillRestarts) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.restart("p0");
  heal();
  world.run_for(50);
  if (GetParam() == Stage::kWaitingForConsumed || GetParam() == Stage::kFencing) {
    // Done was there before its writer died, so the room is decode's to finish.
    expect_success(d(), pair.receiver);
  } else if (GetParam() > Stage::kGreeting) {
    expect_failed(d(), pair.receiver, FailureCode::kPeerRestarted);
  } else {
    // It now waits for a sender that died with the former life; its caller needs the pages.
    d().abort(pair.receiver);
    world.run_for(50);
  }
  // L3, L4: the next room needs nobody's help.
  const RoomPair next = transfer(name_room(50));
  world.run_for(500);
  expect_success(d(), next.receiver);
  world.run_for(1'100);
  expect_rest();
}

TEST_P(FailureAt, DecodeDies) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.kill("d0");
  world.run_for(50);
  if (pair.sender != 0 && GetParam() > Stage::kWaitingForPages) {
    expect_failed(p(), pair.sender, FailureCode::kPeerLost);
  }
  heal();
  world.run_for(3'000);
  EXPECT_TRUE(pair.sender == 0 || is_terminal(p().poll(pair.sender)));
  EXPECT_TRUE(p().pages_out().empty());
  EXPECT_TRUE(p().snapshot().peers.empty()) << "nothing is kept of a process that is gone";
  expect_rest();
}

TEST_P(FailureAt, DecodeRestarts) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.restart("d0");
  heal();
  world.run_for(100);
  const RoomPair next = transfer(name_room(50));
  world.run_for(100);
  expect_success(d(), next.receiver);
  expect_success(p(), next.sender);
  world.run_for(1'100);
  EXPECT_TRUE(pair.sender == 0 || is_terminal(p().poll(pair.sender)));
  expect_rest();
}

TEST_P(FailureAt, TheTwoAreCutOff) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.links().block(p(), d());
  world.run_for(2'100);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)) || GetParam() == Stage::kWaitingForPages);
  world.run_for(5'000);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)));
  heal();
  world.run_for(3'000);
  const RoomPair next = transfer(name_room(50));
  world.run_for(3'000);
  expect_success(d(), next.receiver);
  expect_rest();
}

// Frozen, and awake again after everybody gave it up (a zombie).
TEST_P(FailureAt, PrefillSleeps) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.sleep(p(), 8'000);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)));
  heal();
  world.run_for(4'000);
  EXPECT_TRUE(pair.sender == 0 || is_terminal(p().poll(pair.sender)));
  const RoomPair next = transfer(name_room(50));
  world.run_for(500);
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_P(FailureAt, DecodeSleeps) {
  engines();
  const RoomPair pair = reach(GetParam());
  world.sleep(d(), 8'000);
  EXPECT_TRUE(pair.sender == 0 || is_terminal(p().poll(pair.sender)));
  heal();
  world.run_for(4'000);
  EXPECT_TRUE(is_terminal(d().poll(pair.receiver)));
  const RoomPair next = transfer(name_room(50));
  world.run_for(500);
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_P(FailureAt, TheServerStops) {
  engines();
  const RoomPair pair = reach(GetParam());
  const Failure cause{FailureCode::kShuttingDown, FailureWhere::kLocal, "it stops", {}, -1};
  p().receive(StopRequested{cause});
  world.run_for(20);
  if (pair.sender != 0) {
    expect_failed(p(), pair.sender, FailureCode::kShuttingDown);
  }
  if (GetParam() > Stage::kWaitingForSender && GetParam() != Stage::kWaitingForConsumed) {
    expect_failed(d(), pair.receiver, FailureCode::kShuttingDown);
  }
  expect_rest();
}

struct WaitingFor {
  Stage stage;
  std::string decode;  // what the receiver's failure names
  std::string prefill;
};

class DeadlineText : public Scenario, public ::testing::WithParamInterface<WaitingFor> {
 protected:
  // The side that is asked has the short deadlines, so that it is the first to know.
  RoomPair wait(bool decode_is_asked) {
    Options patient = options_;
    patient.bootstrap_timeout_ms = 60'000;
    patient.input_timeout_ms = 60'000;
    patient.transfer_timeout_ms = 60'000;
    world.add("p0", {Role::kPrefill, 0, 1, 32, decode_is_asked ? patient : options_, {}, {}});
    world.add("d0", {Role::kDecode, 0, 1, 32, decode_is_asked ? options_ : patient, {}, {}});
    const RoomPair pair = reach(GetParam().stage);
    world.run_for(3'200);
    return pair;
  }
  void expect_text(Process& process, std::uint64_t owner, const std::string& text) {
    EXPECT_NE(process.cause(owner).find(text), std::string::npos) << process.cause(owner);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Stages, DeadlineText,
    ::testing::Values(
        WaitingFor{Stage::kUnresolved, "the registry's answer", "grants (0 of ? are here)"},
        WaitingFor{Stage::kGreeting, "sessions with 1 of 1 prefill ranks",
                   "grants (0 of ? are here)"},
        WaitingFor{Stage::kWaitingForPages, "send_metadata()", "grants (0 of ? are here)"},
        WaitingFor{Stage::kWaitingForChunks, "Done of 1 of 1 writers",
                   "send() (0 of 3 pages given)"},
        WaitingFor{Stage::kWriting, "112 of 112 bytes", "7 writes"},
        WaitingFor{Stage::kFencing, "0 of 112 bytes, Done of 0 of 1 writers", "Consumed of 1 of 1"},
        WaitingFor{Stage::kWaitingForDone, "0 of 112 bytes, Done of 1 of 1", "Consumed of 1 of 1"},
        WaitingFor{Stage::kWaitingForConsumed, "", "Consumed of 1 of 1"}),
    [](const auto& each) { return stage_name(each.param.stage); });

TEST_P(DeadlineText, OfDecodeSaysWhatIsMissing) {
  const RoomPair pair = wait(true);
  expect_text(d(), pair.receiver, GetParam().decode);
}

TEST_P(DeadlineText, OfPrefillSaysWhatIsMissing) {
  const RoomPair pair = wait(false);
  expect_text(p(), pair.sender, GetParam().prefill);
}

class TableLimits : public Scenario {};

TEST_F(TableLimits, MoreRoomsThanAllowed) {
  options_.max_rooms = 2;
  engines();
  std::vector<RoomPair> rooms;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    rooms.push_back({d().open(name_room(i)), p().open(name_room(i))});
  }
  world.run_for(1);
  expect_failed(d(), rooms[2].receiver, FailureCode::kTableFull);
  expect_failed(p(), rooms[2].sender, FailureCode::kTableFull);
  EXPECT_NE(d().cause(rooms[2].receiver).find("max_rooms"), std::string::npos);
  d().abort(rooms[0].receiver);
  world.run_for(1);
  const std::uint64_t next = d().open(name_room(4));
  world.run_for(1);
  expect_status(d(), next, KvPoll::kBootstrapping);
  expect_rest();
}

TEST_F(TableLimits, NothingIsLeftToWakeUpFor) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForSender);
  world.kill("d0");
  world.run_for(10'000);
  EXPECT_EQ(pair.sender, 0U);
  EXPECT_EQ(p().next_deadline(), Instant::max());
}

// A grant that waits goes with its session, and so does its deadline.
TEST_F(TableLimits, AWaitingGrantGoesWithItsSession) {
  options_.unopened_room_timeout_ms = 30'000;
  engines();
  reach(Stage::kWaitingForSender);
  world.kill("d0");
  world.run_for(10'000);
  EXPECT_EQ(p().next_deadline(), Instant::max());
}

TEST_F(TableLimits, EventsOfTheOtherRoleAreCounted) {
  engines();
  d().receive(SenderCleared{SenderId(9)});
  p().receive(FenceCompleted{GrantId(9)});
  d().receive(ReceiverAborted{ReceiverId(99), Failure{}});
  p().receive(SenderAborted{SenderId(99), Failure{}});
  world.run_for(1);
  EXPECT_EQ(d().counter("misdirected_events"), 1U);
  EXPECT_EQ(p().counter("misdirected_events"), 1U);
}

}  // namespace
}  // namespace kvferry::core::fake
