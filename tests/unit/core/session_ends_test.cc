// What a session that has ended may still do: nothing. Old frames, resumptions of what is over, and
// words of a hello that fit nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

constexpr std::uint32_t kAlways = 1'000'000;

class EndedSession : public Scenario {
 protected:
  SessionEpoch epoch_of(Process& process) { return process.snapshot().peers.at(0).epoch; }
  bool is_ready(Process& process) { return process.snapshot().peers.at(0).ready; }
  void end_at(Process& process) {
    process.receive(LaneFailed{
        epoch_of(process),
        Failure{FailureCode::kOperatingSystem, FailureWhere::kPath, "no lane", {}, -1}, true});
  }
  void hand(Process& from, Process& to, wire::Message message) {
    to.receive(FrameArrived{from.key(), wire::Frame{{}, 0, 0, {std::move(message)}}});
    world.run_for(5);
  }
};

// Rule 7: the same two processes, the next session; what was said in the first counts no more.
TEST_F(EndedSession, AFrameOfItChangesNothingInTheNext) {
  engines();
  d().receive(PairsWanted{{p().row()}});
  world.run_for(50);
  const SessionEpoch first = epoch_of(d());
  world.links().drop<wire::Grant>(kAlways);
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(20);
  const auto& history = world.links().history();
  const auto grant = std::ranges::find_if(
      history, [](const FrameOnLink& frame) { return frame.carries<wire::Grant>(); });
  ASSERT_NE(grant, history.end());
  const FrameOnLink old = *grant;
  end_at(d());
  heal();
  ASSERT_TRUE(world.run_until([&] { return is_ready(d()) && epoch_of(d()) != first; }, 1'000));
  expect_failed(d(), receiver, FailureCode::kOperatingSystem);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(20);
  const std::uint64_t stale = p().counter("stale_messages");
  world.links().deliver_again(old);
  world.run_for(20);
  EXPECT_GT(p().counter("stale_messages"), stale);
  expect_status(p(), sender, KvPoll::kBootstrapping);
  EXPECT_EQ(world.fabric().writes_posted(), 0U);
  expect_success(d(), transfer(name_room(2)).receiver);
  expect_rest();
}

// One side has ended it and its word of that is lost; the other, whose connection broke, asks to go
// on.
TEST_F(EndedSession, IsNeverResumed) {
  engines();
  d().receive(PairsWanted{{p().row()}});
  const RoomPair pair = reach(Stage::kWriting);
  const SessionEpoch first = epoch_of(d());
  world.links().on_frame = [](const FrameOnLink& frame) {
    return frame.carries<wire::Hello>() || frame.carries<wire::SessionEnded>()
               ? FrameFate::kDrop
               : FrameFate::kDeliver;
  };
  end_at(d());
  world.run_for(1);
  expect_failed(d(), pair.receiver, FailureCode::kOperatingSystem);
  world.links().cut(p(), d());
  world.run_for(300);
  EXPECT_GT(world.links().sent<wire::Resume>(), 0U) << "prefill asks";
  EXPECT_EQ(world.links().sent<wire::Resumed>(), 0U) << "and nobody says yes";
  EXPECT_EQ(p().counter("sessions_resumed"), 0U);
  EXPECT_FALSE(is_ready(d()));
  heal();
  world.run_for(2'500);
  expect_failed(p(), pair.sender, FailureCode::kPeerLost);
  const RoomPair next = transfer(name_room(2));
  world.run_for(1'000);
  expect_success(d(), next.receiver);
  expect_success(p(), next.sender);
  EXPECT_NE(epoch_of(d()), first);
  expect_rest();
}

TEST_F(EndedSession, IsNeverResumedOnPrefillEither) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.links().drop<wire::SessionEnded>(kAlways);
  end_at(p());
  world.run_for(1);
  expect_failed(p(), pair.sender, FailureCode::kOperatingSystem);
  world.links().cut(p(), d());
  world.run_for(300);
  EXPECT_GT(world.links().sent<wire::Resume>(), 0U);
  EXPECT_EQ(world.links().sent<wire::Resumed>(), 0U);
  EXPECT_EQ(d().counter("sessions_resumed"), 0U);
  world.run_for(2'500);
  expect_failed(d(), pair.receiver, FailureCode::kPeerLost);
  heal();
  world.run_for(100);
  const RoomPair next = transfer(name_room(2));
  world.run_for(1'000);
  expect_success(d(), next.receiver);
  expect_rest();
}

// Who goes on must prove that it holds what the hello agreed on.
TEST_F(EndedSession, AResumptionWithoutProofIsNotAnswered) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const SessionEpoch epoch = epoch_of(p());
  hand(d(), p(), wire::Resume{epoch, wire::Nonce{1}, wire::Proof{2}});
  EXPECT_EQ(p().counter("foreign_messages"), 1U);
  EXPECT_EQ(world.links().sent<wire::Resumed>(), 0U);
  world.links().block(p(), d());
  world.run_for(100);
  ASSERT_EQ(d().snapshot().peers.at(0).state, "suspended");
  hand(p(), d(), wire::Resumed{epoch, wire::Nonce{1}, wire::Proof{2}});
  EXPECT_EQ(d().snapshot().peers.at(0).state, "suspended");
  EXPECT_EQ(d().counter("stale_messages"), 1U);
  heal();
  world.run_for(1'500);
  expect_success(d(), pair.receiver);
  EXPECT_EQ(epoch_of(d()), epoch);
  expect_rest();
}

TEST_F(EndedSession, AnAnswerThatNobodyAskedForChangesNothing) {
  engines();
  transfer(name_room(1));
  hand(p(), d(), wire::Resumed{epoch_of(d()), {}, {}});
  hand(p(), d(), wire::HelloRefused{wire::Nonce{7}, Failure{}});
  hand(p(), d(), wire::HelloConfirmed{SessionEpoch(77)});
  hand(p(), d(), wire::SessionEnded{SessionEpoch(77), Failure{}});
  EXPECT_EQ(d().counter("stale_messages"), 4U);
  EXPECT_TRUE(is_ready(d()));
  expect_success(d(), transfer(name_room(2)).receiver);
  expect_rest();
}

// Only its two ends speak in a session.
TEST_F(EndedSession, AStrangersFrameInItIsForeign) {
  engines(1, 2);
  transfer(name_room(1));
  const std::uint64_t receiver = receive(d(0), name_room(2), {9});
  world.run_for(20);
  wire::Frame frame;
  frame.session = d(0).snapshot().peers.at(0).epoch;
  frame.messages.emplace_back(wire::Failed{name_room(2).room, name_room(2).binding,
                                           d(0).cell(receiver).attempt, Failure{}});
  d(0).receive(FrameArrived{d(1).key(), std::move(frame)});
  world.run_for(5);
  EXPECT_EQ(d(0).counter("foreign_messages"), 1U);
  expect_status(d(0), receiver, KvPoll::kTransferring);
  expect_rest();
}

class StrangeHello : public EndedSession {
 protected:
  wire::Hello hello_of(const std::string& endpoint) {
    wire::Hello hello;
    hello.self = d().self();
    hello.self.control_endpoint = endpoint;
    hello.nonce = {5};
    return hello;
  }
};

TEST_F(StrangeHello, OfTheSameRoleIsRefused) {
  engines();
  wire::Hello hello = hello_of(d().self().control_endpoint);
  hello.self.role = Role::kPrefill;
  hand(d(), p(), hello);
  EXPECT_EQ(p().counter("hellos_refused"), 1U);
  EXPECT_NE(p().snapshot().peers.at(0).reason.find("both sides are prefill"), std::string::npos)
      << p().snapshot().peers.at(0).reason;
  expect_rest();
}

TEST_F(StrangeHello, ToADecodeIsUnexpected) {
  engines();
  hand(p(), d(), hello_of("x:1"));
  EXPECT_EQ(d().counter("unexpected_hellos"), 1U);
  EXPECT_TRUE(d().snapshot().peers.empty());
}

TEST_F(StrangeHello, BeyondTheTableOfPeersIsRefused) {
  options_.max_peers = 1;
  engines();
  transfer(name_room(1));
  p().receive(FrameArrived{"another key", wire::Frame{{}, 0, 0, {hello_of("x:1")}}});
  world.run_for(5);
  EXPECT_EQ(p().counter("peers_refused"), 1U);
  EXPECT_EQ(p().snapshot().peers.size(), 1U);
  expect_success(d(), transfer(name_room(2)).receiver);
  expect_rest();
}

TEST_F(StrangeHello, AConfirmationWithAnotherNonceOpensNothing) {
  engines();
  world.links().hold<wire::HelloConfirm>();
  receive(d(), name_room(1), {1});
  ASSERT_TRUE(world.run_until([&] { return world.links().sent<wire::HelloConfirm>() > 0; }, 100));
  const auto confirm = world.links().last<wire::HelloConfirm>();
  hand(d(), p(), wire::HelloConfirm{confirm.epoch, wire::Nonce{9}});
  EXPECT_EQ(p().counter("stale_messages"), 1U);
  EXPECT_FALSE(is_ready(p()));
  // To the wrong side, too.
  hand(p(), d(), wire::HelloConfirm{confirm.epoch, confirm.echoed_nonce});
  EXPECT_EQ(d().counter("stale_messages"), 1U);
  heal();
  world.run_for(200);
  EXPECT_TRUE(is_ready(p()));
  expect_rest();
}

TEST_F(StrangeHello, AReplyThatNamesNoNewSessionIsStale) {
  engines();
  world.links().drop<wire::HelloReply>();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  ASSERT_TRUE(world.run_until([&] { return world.links().sent<wire::HelloReply>() > 0; }, 100));
  auto reply = world.links().last<wire::HelloReply>();
  reply.epoch = SessionEpoch{};
  hand(p(), d(), reply);
  EXPECT_EQ(d().counter("stale_messages"), 1U);
  EXPECT_FALSE(is_ready(d()));
  heal();
  send(p(), name_room(1), {2});
  world.run_for(500);
  expect_success(d(), receiver);
  expect_rest();
}

// Decode looks at prefill's layout itself; it does not rely on prefill having looked at its own.
TEST_F(StrangeHello, AReplyThatDoesNotFitIsRefusedByDecode) {
  engines();
  world.links().drop<wire::HelloReply>();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  ASSERT_TRUE(world.run_until([&] { return world.links().sent<wire::HelloReply>() > 0; }, 100));
  auto reply = world.links().last<wire::HelloReply>();
  reply.self.layout.model_fingerprint = "other";
  hand(p(), d(), reply);
  expect_failed(d(), receiver, FailureCode::kLayoutMismatch);
  expect_rest();
}

TEST_F(StrangeHello, PrefillTakesNoReply) {
  engines();
  transfer(name_room(1));
  hand(d(), p(), wire::HelloReply{d().self(), {}, {}, {}, SessionEpoch(5), "fake"});
  EXPECT_EQ(p().counter("stale_messages"), 1U);
  expect_success(d(), transfer(name_room(2)).receiver);
}

TEST_F(StrangeHello, APrefillThatCannotOpenItsDataSessionEndsIt) {
  engines();
  p().data_session_refusal =
      Failure{FailureCode::kOperatingSystem, FailureWhere::kLocal, "no more descriptors", {}, -1};
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(300);
  EXPECT_FALSE(is_ready(p()));
  expect_status(d(), receiver, KvPoll::kBootstrapping);
  p().data_session_refusal.reset();
  send(p(), name_room(1), {2});
  world.run_for(3'000);
  EXPECT_TRUE(is_terminal(d().poll(receiver)));
  expect_success(d(), transfer(name_room(2)).receiver);
  expect_rest();
}

}  // namespace
}  // namespace kvferry::core::fake
