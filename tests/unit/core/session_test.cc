// A session's life after the hello: lost connections, the grace, silence, restarts.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class SessionLife : public Scenario {
 protected:
  SessionEpoch epoch_of(Process& process) { return process.snapshot().peers.at(0).epoch; }
};

TEST_F(SessionLife, ALostConnectionIsResumedAndNoRoomFails) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const SessionEpoch epoch = epoch_of(d());
  world.links().cut(p(), d());
  world.take_trace();
  world.run_for(50);
  EXPECT_EQ(world.take_trace(), R"(
d0 > p0 resume
p0 > d0 resume
d0 > p0 resumed
p0 > d0 resumed
)");
  heal();
  world.run_for(100);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  EXPECT_EQ(epoch_of(d()), epoch);
  EXPECT_EQ(p().counter("sessions_resumed"), 1U);
  expect_rest();
}

TEST_F(SessionLife, WhatWasSaidIntoALostConnectionIsSaidAgain) {
  engines();
  transfer(name_room(1));
  const RoomPair pair = reach(Stage::kWriting, name_room(2));
  world.fabric().release_held();
  // Done leaves and its connection breaks while it is under way.
  ASSERT_TRUE(world.run_until([&] { return world.links().sent<wire::Done>() == 2; }, 100));
  world.links().cut(p(), d());
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  expect_rest();
}

TEST_F(SessionLife, ManyShortCuts) {
  engines();
  std::vector<RoomPair> rooms;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const auto page = static_cast<std::uint32_t>(i);
    rooms.push_back({receive(d(), name_room(i), {page}), send(p(), name_room(i), {page})});
    world.run_for(7);
    world.links().cut(p(), d());
    world.run_for(3);
  }
  world.run_for(500);
  for (const RoomPair& room : rooms) {
    expect_success(d(), room.receiver);
    expect_success(p(), room.sender);
  }
  EXPECT_EQ(d().counter("sessions_ended"), 0U);
  expect_rest();
}

TEST_F(SessionLife, ALinkSlowerThanTheFirstRepetitionIsResumedToo) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.links().latency = [] { return milliseconds(150); };
  world.links().cut(p(), d());
  heal();
  world.run_for(1'900);
  expect_success(d(), pair.receiver);
  EXPECT_EQ(d().counter("sessions_resumed"), 1U);
  EXPECT_EQ(d().counter("sessions_ended"), 0U);
}

TEST_F(SessionLife, TheGraceEndsIt) {
  options_.input_timeout_ms = 10'000;
  engines();
  const RoomPair pair = reach(Stage::kWaitingForChunks);
  world.links().block(p(), d());
  world.run_for(1'900);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  EXPECT_EQ(d().snapshot().peers.at(0).state, "suspended");
  world.run_for(200);
  expect_failed(d(), pair.receiver, FailureCode::kPeerLost);
  expect_failed(p(), pair.sender, FailureCode::kPeerLost);
  EXPECT_NE(d().cause(pair.receiver).find("session_grace_ms"), std::string::npos);
  heal();
  // An ended session is never resumed; the next room gets a new one (L3).
  const RoomPair next = transfer(name_room(2));
  world.run_for(2'500);
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_F(SessionLife, ARefusedRedialEndsItAtOnce) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.kill("p0");
  world.run_for(20);
  expect_failed(d(), pair.receiver, FailureCode::kPeerLost);
  EXPECT_NE(d().cause(pair.receiver).find("refuses connections"), std::string::npos);
  world.run_for(100);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U) << "the fence needs no writer";
}

TEST_F(SessionLife, AnotherIncarnationEndsItAtOnce) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.restart("p0");
  world.run_for(20);
  expect_failed(d(), pair.receiver, FailureCode::kPeerRestarted);
  heal();
  const RoomPair next = transfer(name_room(2));
  world.run_for(100);
  expect_success(d(), next.receiver);
  expect_success(p(), next.sender);
  expect_rest();
}

TEST_F(SessionLife, TheSameForARestartedDecode) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.restart("d0");
  world.run_for(20);
  expect_failed(p(), pair.sender, FailureCode::kPeerRestarted);
  heal();
  world.run_for(100);
  EXPECT_EQ(p().cell(pair.sender).released.size(), 1U);
  const RoomPair next = transfer(name_room(2));
  world.run_for(100);
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_F(SessionLife, SilenceEndsIt) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForChunks);
  options_.transfer_timeout_ms = 60'000;
  // Half-open: sends succeed and nothing arrives.
  world.links().on_frame = [](const FrameOnLink&) { return FrameFate::kDrop; };
  world.run_for(2'700);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  world.run_for(700);
  expect_failed(d(), pair.receiver, FailureCode::kRoomTimeout);
  EXPECT_EQ(d().counter("sessions_ended"), 1U);
  EXPECT_EQ(p().counter("sessions_ended"), 1U);
  expect_rest();
}

TEST_F(SessionLife, IdleSessionsLiveOnHeartbeats) {
  engines();
  transfer(name_room(1));
  const SessionEpoch epoch = epoch_of(d());
  world.run_for(20'000);
  EXPECT_EQ(epoch_of(d()), epoch);
  EXPECT_EQ(epoch_of(p()), epoch);
  // Four a second from each side, and nothing else.
  EXPECT_LT(world.links().history().size(), 2U * 4 * 20 + 40);
}

// One word from the other side is enough, whatever it is (rule 12).
TEST_F(SessionLife, AnyTrafficIsASignOfLife) {
  engines();
  transfer(name_room(1));
  world.links().on_frame = [](const FrameOnLink& frame) {
    return frame.carries<wire::Heartbeat>() ? FrameFate::kDrop : FrameFate::kDeliver;
  };
  for (std::uint64_t i = 2; i < 10; ++i) {
    transfer(name_room(i));
    world.run_for(900);
    d().poll(i);
  }
  EXPECT_EQ(d().counter("sessions_ended"), 0U);
}

// The pause rule: what waits outside counts before the own deadlines do. The first turn after a
// pause settles events only; the world has not yet been asked for all of them.
TEST_F(SessionLife, AfterAPauseTheInboxComesBeforeTheTimers) {
  world.add("p0", {Role::kPrefill, 0, 1, 32, options_, {}, {}});
  options_.heartbeat_timeout_ms = 1'000;
  world.add("d0", {Role::kDecode, 0, 1, 32, options_, {}, {}});
  transfer(name_room(1));
  world.links().on_frame = [&](const FrameOnLink& frame) {
    return frame.from == &p() ? FrameFate::kHold : FrameFate::kDeliver;
  };
  world.sleep(d(), 1'500);
  d().step(world.now());
  EXPECT_EQ(d().counter("sessions_ended"), 0U) << "its heartbeats were on their way";
  EXPECT_EQ(d().next_deadline(), world.now()) << "the timers are only put off to the next turn";
  heal();
  world.sleep(d(), 2);
  world.run_for(10);
  EXPECT_EQ(d().counter("sessions_ended"), 0U);
  expect_rest();
}

TEST_F(SessionLife, APauseDoesNotPutTheTimersOffForGood) {
  options_.heartbeat_timeout_ms = 1'000;
  engines();
  transfer(name_room(1));
  world.links().on_frame = [](const FrameOnLink&) { return FrameFate::kDrop; };
  world.sleep(d(), 1'500);
  world.run_for(1);
  EXPECT_EQ(d().counter("sessions_ended"), 1U);
}

TEST_F(SessionLife, AZombieLearnsThatItsSessionHasEnded) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.sleep(p(), 3'500);
  expect_failed(d(), pair.receiver, FailureCode::kRoomTimeout);
  world.run_for(50);
  EXPECT_TRUE(is_terminal(p().cell(pair.sender).status));
  heal();
  world.run_for(50);
  // What it had posted finds the grant fenced.
  EXPECT_EQ(world.fabric().refused_by_generation(), 7U);
  expect_rest();
}

TEST_F(SessionLife, FailingLanesEndIt) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const Failure reset{
      FailureCode::kOperatingSystem, FailureWhere::kPath, "connection reset", {}, -1};
  const SessionEpoch epoch = epoch_of(p());
  p().receive(LaneFailed{epoch, reset});
  p().receive(LaneFailed{epoch, reset});
  world.run_for(2'100);
  p().receive(LaneFailed{epoch, reset});
  world.run_for(10);
  EXPECT_EQ(p().counter("sessions_ended"), 0U) << "only what happens within the grace counts";
  p().receive(LaneFailed{epoch, reset});
  p().receive(LaneFailed{epoch, reset});
  world.run_for(10);
  EXPECT_EQ(p().counter("sessions_ended"), 1U);
  expect_failed(p(), pair.sender, FailureCode::kOperatingSystem);
  EXPECT_NE(p().cause(pair.sender).find("3 data lanes failed within 2000 ms"), std::string::npos)
      << p().cause(pair.sender);
  expect_rest();
}

TEST_F(SessionLife, WithoutAnyLaneItEndsWithThatCause) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const Failure filtered{
      FailureCode::kPeerUnreachable, FailureWhere::kPath, "no lane to the data port", {}, -1};
  p().receive(LaneFailed{epoch_of(p()), filtered, true});
  world.run_for(10);
  expect_failed(p(), pair.sender, FailureCode::kPeerUnreachable);
  expect_failed(d(), pair.receiver, FailureCode::kPeerUnreachable);
  EXPECT_NE(d().cause(pair.receiver).find("no lane to the data port"), std::string::npos);
  expect_rest();
}

TEST_F(SessionLife, APairForWhichSomebodyElseAnsweredForATimeHeals) {
  engines();
  d().receive(PairsWanted{{p().row()}});
  world.run_for(100);
  ASSERT_TRUE(d().snapshot().peers.at(0).ready);
  for (int i = 0; i < 3; ++i) {
    d().receive(LinkDown{PeerId(1), LinkDown::Why::kWrongKey});
  }
  world.run_for(1);
  ASSERT_EQ(d().snapshot().peers.size(), 1U);
  EXPECT_FALSE(d().snapshot().peers[0].ready);
  world.run_for(2 * options_.redial_max_ms + 200);
  EXPECT_TRUE(d().snapshot().peers[0].ready) << d().snapshot().peers[0].reason;
  expect_success(d(), transfer(name_room(3)).receiver);
  expect_rest();
}

TEST_F(SessionLife, StopTellsEverybody) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  d().receive(StopRequested{
      Failure{FailureCode::kShuttingDown, FailureWhere::kLocal, "the server stops", {}, -1}});
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kShuttingDown);
  expect_failed(p(), pair.sender, FailureCode::kShuttingDown);
  const std::uint64_t late = receive(d(), name_room(2), {9});
  world.run_for(10);
  expect_failed(d(), late, FailureCode::kShuttingDown);
  expect_rest();
}

TEST_F(SessionLife, PairsAreKeptWithoutRooms) {
  engines();
  d().receive(PairsWanted{{p().row()}});
  world.run_for(100);
  ASSERT_EQ(d().snapshot().peers.size(), 1U);
  EXPECT_TRUE(d().snapshot().peers[0].ready);
  // Lost for good, and back with a new key: the registry's next list names it.
  const PeerRow old = p().row();
  world.restart("p0");
  world.run_for(500);
  d().receive(PairsWanted{{p().row()}});
  world.run_for(100);
  ASSERT_EQ(d().snapshot().peers.size(), 1U);
  EXPECT_TRUE(d().snapshot().peers[0].ready);
  d().receive(PairsWanted{});
  world.run_for(100);
  EXPECT_EQ(d().snapshot().peers.size(), 1U) << "a live session is kept until it ends";
}

// --- the test of the data path ---

class TestedPath : public Scenario {
 protected:
  TestedPath() {
    world.add_engines(1, 1, options_, TransportClass{true, true, true});
    world.run_for(20);
    transfer(name_room(1));
  }
  PeerView pair_of(Process& process) { return process.snapshot().peers.at(0); }
  void tell(Process& process, Status result) {
    process.receive(PathTested{pair_of(process).epoch, std::move(result)});
    world.run_for(5);
  }
};

TEST_F(TestedPath, APairIsReadyWhenItsPathWasSeenToWork) {
  EXPECT_EQ(pair_of(d()).state, "testing");
  EXPECT_FALSE(pair_of(d()).ready);
  EXPECT_EQ(pair_of(d()).reason, "its data path is being tested");
  tell(d(), {});
  EXPECT_EQ(pair_of(d()).state, "live");
  EXPECT_TRUE(pair_of(d()).ready);
  EXPECT_EQ(pair_of(d()).reason, "");
  EXPECT_FALSE(pair_of(p()).ready);  // each side believes its own test
  EXPECT_EQ(d().counter("path_tests_passed"), 1U);
}

TEST_F(TestedPath, AFailedTestIsTheReasonWhyAPairIsNotReady) {
  tell(p(), fail(FailureCode::kWriteUnknown, "the test page is lost", FailureWhere::kPath));
  EXPECT_FALSE(pair_of(p()).ready);
  EXPECT_NE(pair_of(p()).reason.find("the test page is lost"), std::string::npos);
  EXPECT_EQ(p().counter("path_tests_failed"), 1U);
}

TEST_F(TestedPath, AResumedSessionIsStillTested) {
  tell(d(), {});
  world.links().cut(p(), d());
  world.run_for(50);
  EXPECT_TRUE(pair_of(d()).ready);
}

TEST_F(TestedPath, TheTestOfAnEndedSessionSaysNothingOfTheNext) {
  const SessionEpoch former = pair_of(d()).epoch;
  world.restart("p0");
  world.run_for(200);
  d().receive(PathTested{former, {}});
  transfer(name_room(2));
  EXPECT_NE(pair_of(d()).epoch, former);
  EXPECT_FALSE(pair_of(d()).ready);
}

// --- what an operator sees before a deadline ---

TEST_F(SessionLife, ARoomThatUsedAQuarterOfItsTimeIsNotedOnce) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  EXPECT_EQ(d().counter("slow_rooms"), 0U);
  const std::int64_t quarter = options_.transfer_timeout_ms / 4;
  world.run_for(quarter + 5);
  EXPECT_EQ(d().counter("slow_rooms"), 1U);
  EXPECT_EQ(p().counter("slow_rooms"), 1U);
  EXPECT_GE(d().snapshot().oldest_room_ms, quarter);
  heal();
  world.run_for(100);
  expect_success(d(), pair.receiver);
  EXPECT_EQ(d().counter("slow_rooms"), 1U);
  EXPECT_EQ(d().snapshot().oldest_room_ms, 0);
}

TEST_F(SessionLife, PagesThatWaitForTheirFenceShowTheirAge) {
  engines();
  const RoomPair pair = reach(Stage::kFencing);
  d().abort(pair.receiver);
  world.run_for(40);
  EXPECT_GE(d().snapshot().oldest_quarantine_ms, 30);
  heal();
  world.run_for(100);
  EXPECT_EQ(d().snapshot().oldest_quarantine_ms, 0);
}

// A handshake that is cut off in the middle looks like another key. Once is no evidence.
TEST_F(SessionLife, OneBrokenHandshakeEndsNoSession) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const SessionEpoch epoch = epoch_of(d());
  d().receive(LinkDown{PeerId(1), LinkDown::Why::kWrongKey});
  world.run_for(50);
  EXPECT_EQ(epoch_of(d()), epoch);
  EXPECT_EQ(d().counter("sessions_ended"), 0U);
  heal();
  world.run_for(100);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  expect_rest();
}

// --- a dead life that somebody still believes in ---

// What a registry says may be a moment old. A room that it sends to a life that is over, whose peer
// is dialled rarely by now, must not wait for that peer's next turn.
TEST_F(SessionLife, ARoomSentToADeadLifeIsToldSoon) {
  engines();
  transfer(name_room(1));
  const std::vector<PeerRow> former = world.prefill_rows("prefill");
  d().receive(PairsWanted{former});
  const ProcessSetup setup = p().setup();
  world.kill("p0");
  world.run_for(10'000);  // the pace of its redials is the slowest
  world.add("p0", setup);
  const std::uint64_t receiver = d().open(name_room(2));
  d().receive(PrefillResolved{ReceiverId(receiver), former});
  world.run_for(300);
  expect_failed(d(), receiver, FailureCode::kPeerRestarted);
  const RoomPair pair = transfer(name_room(3));
  expect_success(d(), pair.receiver);
}

}  // namespace
}  // namespace kvferry::core::fake
