// Opening a session: versions, layouts, numerics, lost words, old words.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class HelloDialogue : public Scenario {
 protected:
  // p0 as the others, d0 with something changed.
  void with_other_decode(std::function<void(wire::Introduction&)> adjust) {
    world.add("p0", {Role::kPrefill, 0, 1, 32, options_, {}, {}});
    world.add("d0", {Role::kDecode, 0, 1, 32, options_, {}, std::move(adjust)});
  }
  void expect_refused(FailureCode code, const std::string& text) {
    const std::uint64_t receiver = receive(d(), name_room(1), {1});
    world.run_for(100);
    expect_failed(d(), receiver, code);
    EXPECT_NE(d().cause(receiver).find(text), std::string::npos) << d().cause(receiver);
    EXPECT_EQ(d().pages_out().size(), 0U);
    EXPECT_EQ(d().cell(receiver).failure->where, FailureWhere::kPeer);
    EXPECT_EQ(d().cell(receiver).failure->peer, "p0:1");
    expect_rest();
  }
};

TEST_F(HelloDialogue, AnotherMajorVersionIsRefused) {
  with_other_decode([](wire::Introduction& self) { self.major = 2; });
  expect_refused(FailureCode::kSessionRefused, "protocol version: 1.0 here, 2.0 at the peer");
}

TEST_F(HelloDialogue, AnotherMinorVersionIsNot) {
  with_other_decode([](wire::Introduction& self) { self.minor = 1; });
  const RoomPair pair = transfer(name_room(1));
  expect_success(d(), pair.receiver);
}

TEST_F(HelloDialogue, AnotherLayoutIsRefusedWithFieldAndValues) {
  with_other_decode([](wire::Introduction& self) { self.layout.model_fingerprint = "other"; });
  expect_refused(FailureCode::kLayoutMismatch, "model here, other at the peer");
}

TEST_F(HelloDialogue, AnUnsoundLayoutIsRefused) {
  with_other_decode([](wire::Introduction& self) { self.layout.regions[0].item_bytes = 7; });
  expect_refused(FailureCode::kLayoutMismatch, "the peer's layout is unsound");
}

TEST_F(HelloDialogue, OtherNumericsWarn) {
  with_other_decode([](wire::Introduction& self) { self.numerics.threads = 3; });
  const RoomPair pair = transfer(name_room(1));
  expect_success(d(), pair.receiver);
  EXPECT_NE(world.take_trace().find("p0 notes: numerics differ from d0:1"), std::string::npos);
}

TEST_F(HelloDialogue, OtherNumericsAreRefusedWhereIdentityIsRequired) {
  with_other_decode([](wire::Introduction& self) {
    self.numerics.threads = 3;
    self.require_identical = true;
  });
  expect_refused(FailureCode::kNumericsMismatch, "threads: 0 here, 3 at the peer");
}

TEST_F(HelloDialogue, NoTransportInCommon) {
  with_other_decode([](wire::Introduction& self) { self.transports = {{"other", {}}}; });
  expect_refused(FailureCode::kSessionRefused, "no transport in common");
}

TEST_F(HelloDialogue, ADataSessionThatCannotOpenRefusesThePair) {
  engines();
  d().data_session_refusal =
      Failure{FailureCode::kOperatingSystem, FailureWhere::kLocal, "no more descriptors", {}, -1};
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(100);
  expect_failed(d(), receiver, FailureCode::kOperatingSystem);
  d().data_session_refusal.reset();
  const RoomPair pair = transfer(name_room(2));
  world.run_for(3'000);
  expect_success(d(), pair.receiver);
}

TEST_F(HelloDialogue, EveryWordOfItMayBeLostOnce) {
  engines();
  world.links().drop<wire::Hello>();
  world.links().drop<wire::HelloReply>();
  world.links().drop<wire::HelloConfirm>();
  world.links().drop<wire::HelloConfirmed>();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(900);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(HelloDialogue, EveryWordOfItMayComeTwice) {
  engines();
  world.links().on_frame = [](const FrameOnLink&) { return FrameFate::kDuplicate; };
  const RoomPair pair = transfer(name_room(1));
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  EXPECT_EQ(d().counter("sessions_ended") + p().counter("sessions_ended"), 0U);
  expect_rest();
}

TEST_F(HelloDialogue, AnOldHelloReplacesNothing) {
  engines();
  transfer(name_room(1));
  const FrameOnLink old_hello = world.links().history().front();
  ASSERT_TRUE(old_hello.carries<wire::Hello>());
  const SessionEpoch epoch = d().snapshot().peers.at(0).epoch;
  const RoomPair running = reach(Stage::kWriting, name_room(2));
  world.links().deliver_again(old_hello);
  world.run_for(200);
  heal();
  world.run_for(200);
  expect_success(d(), running.receiver);
  EXPECT_EQ(d().snapshot().peers.at(0).epoch, epoch);
  EXPECT_EQ(p().snapshot().peers.at(0).epoch, epoch);
  world.run_for(6'000);  // Past the deadline of the hello that was never confirmed.
  EXPECT_EQ(p().snapshot().peers.at(0).epoch, epoch);
  expect_rest();
}

TEST_F(HelloDialogue, AReplayedReplyChangesNothing) {
  engines();
  transfer(name_room(1));
  const SessionEpoch epoch = d().snapshot().peers.at(0).epoch;
  for (std::size_t i = 0; i < 4; ++i) {
    world.links().deliver_again(world.links().history().at(i));
  }
  world.run_for(100);
  EXPECT_EQ(d().snapshot().peers.at(0).epoch, epoch);
  const RoomPair pair = transfer(name_room(2));
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(HelloDialogue, AReplyThatComesAfterItsConnectionWasLost) {
  engines();
  world.links().hold<wire::HelloReply>();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  send(p(), name_room(1), {4});
  ASSERT_TRUE(world.run_until([&] { return world.links().sent<wire::HelloReply>() > 0; }, 100));
  const FrameOnLink reply = world.links().history().back();
  world.links().cut(p(), d());
  world.links().deliver_again(reply);
  world.run_for(500);
  expect_success(d(), receiver);
  expect_rest();
}

TEST_F(HelloDialogue, ADeniedKeyIsTriedAgainUntilItIsAllowed) {
  engines();
  world.links().deny(p(), d().key());
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(300);
  expect_status(d(), receiver, KvPoll::kBootstrapping);
  EXPECT_NE(d().snapshot().peers.at(0).reason.find("does not allow"), std::string::npos);
  world.links().allow_all();
  world.run_for(600);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

// A refused hello has no epoch and no nonce of prefill's; nothing confirms it.
TEST_F(HelloDialogue, ARefusedHelloCanNotBeConfirmed) {
  engines();
  wire::Hello hello;
  hello.self.major = 99;
  hello.self.control_endpoint = d().row().address.endpoint;
  p().receive(FrameArrived{d().key(), wire::Frame{{}, 0, 0, {hello}}});
  p().receive(FrameArrived{d().key(), wire::Frame{{}, 0, 0, {wire::HelloConfirm{}}}});
  world.run_for(10);
  EXPECT_EQ(p().counter("hellos_refused"), 1U);
  EXPECT_EQ(p().counter("stale_messages"), 1U);
  for (const PeerView& peer : p().snapshot().peers) {
    EXPECT_FALSE(peer.ready);
  }
  expect_rest();
}

TEST_F(HelloDialogue, NobodyThere) {
  engines();
  const PeerRow row = p().row();
  world.kill("p0");
  d().registry_answers = false;
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  d().receive(PrefillResolved{ReceiverId(receiver), std::vector<PeerRow>{row}});
  world.run_for(900);
  expect_status(d(), receiver, KvPoll::kBootstrapping);
  world.run_for(200);
  expect_failed(d(), receiver, FailureCode::kPeerUnreachable);
  EXPECT_NE(d().cause(receiver).find("refuses connections"), std::string::npos)
      << d().cause(receiver);
  EXPECT_TRUE(d().snapshot().peers.empty()) << "nobody waits for it any more";
  expect_rest();
}

TEST_F(HelloDialogue, AnotherProcessAtTheAddressEndsTheWaitEarly) {
  engines();
  PeerRow row = p().row();
  row.address.public_key = "key of a former life";
  d().registry_answers = false;
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  d().receive(PrefillResolved{ReceiverId(receiver), std::vector<PeerRow>{row}});
  world.run_for(400);
  expect_failed(d(), receiver, FailureCode::kPeerRestarted);
  expect_rest();
}

TEST_F(HelloDialogue, TheRegistryFailsTheRoomAndPoisonsNothing) {
  engines();
  d().registry_failure =
      Failure{FailureCode::kPrefillUnknown, FailureWhere::kPeer, "no such instance", "r:1", -1};
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(10);
  expect_failed(d(), receiver, FailureCode::kPrefillUnknown);
  d().registry_failure.reset();
  expect_success(d(), transfer(name_room(2)).receiver);
  expect_rest();
}

TEST_F(HelloDialogue, AMissingRankFailsTheRoomByName) {
  world.add("p0", {Role::kPrefill, 0, 2, 32, options_, {}, {}});
  world.add("d0", {Role::kDecode, 0, 1, 32, options_, {}, {}});
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(50);
  EXPECT_EQ(d().poll(receiver), KvPoll::kFailed);
  EXPECT_NE(d().cause(receiver).find("head 1"), std::string::npos) << d().cause(receiver);
  expect_rest();
}

TEST_F(HelloDialogue, MorePeersThanTheTableHolds) {
  options_.max_peers = 1;
  engines(2, 1);
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(100);
  expect_failed(d(), receiver, FailureCode::kTableFull);
  EXPECT_NE(d().cause(receiver).find("max_peers"), std::string::npos);
}

// The end of the old session and the hello for the new one come by two connections: in any order.
TEST_F(HelloDialogue, AnEndThatComesAfterTheNextHelloDoesNotUndoIt) {
  engines();
  transfer(name_room(1));
  const SessionEpoch old_epoch = d().snapshot().peers.at(0).epoch;
  world.links().drop<wire::SessionEnded>();
  world.links().hold<wire::HelloReply>();
  const std::uint64_t receiver = receive(d(), name_room(2), {1});
  world.run_for(0);
  for (std::uint32_t i = 0; i < options_.lane_failure_limit; ++i) {
    d().receive(LaneFailed{
        old_epoch,
        Failure{FailureCode::kOperatingSystem, FailureWhere::kPath, "connection reset", {}, -1}});
  }
  // The hello reaches prefill; the end of the former session comes after it.
  ASSERT_TRUE(world.run_until([&] { return world.links().sent<wire::HelloReply>() == 2; }, 500));
  for (const FrameOnLink& old : world.links().history()) {
    if (old.carries<wire::SessionEnded>()) {
      world.links().deliver_again(old);
      break;
    }
  }
  world.links().release_held();
  const std::uint64_t sender = send(p(), name_room(2), {2});
  world.run_for(800);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

// A peer is kept for a moment after its session's end; that moment must not cut a new hello short.
TEST_F(HelloDialogue, AHelloLateInTheMomentAfterAnEnd) {
  options_.bootstrap_timeout_ms = 4'000;
  options_.redial_min_ms = 1'900;
  engines();
  transfer(name_room(1));
  const SessionEpoch old_epoch = d().snapshot().peers.at(0).epoch;
  for (std::uint32_t i = 0; i < options_.lane_failure_limit; ++i) {
    d().receive(LaneFailed{
        old_epoch,
        Failure{FailureCode::kOperatingSystem, FailureWhere::kPath, "connection reset", {}, -1}});
  }
  const std::uint64_t receiver = receive(d(), name_room(2), {1});
  world.links().hold<wire::HelloConfirm>(1'000);
  ASSERT_TRUE(
      world.run_until([&] { return world.links().sent<wire::HelloConfirm>() >= 2; }, 2'500));
  world.run_for(1'200);
  heal();
  world.run_for(300);
  EXPECT_GE(d().cell(receiver).status, KvPoll::kWaitingForInput) << d().cause(receiver);
}

}  // namespace
}  // namespace kvferry::core::fake
