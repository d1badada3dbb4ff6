// Which message belongs to which request: early, late, duplicate and reused names.
#include <gtest/gtest.h>

#include <utility>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class Identity : public Scenario {
 protected:
  // What d0 last said in this room, as a fresh message.
  wire::Grant last_grant() { return world.links().last<wire::Grant>(); }
  // Of attempt 1,000 of room 1, which d0 never made, to be sent in its name. Needs engines().
  std::pair<wire::Grant, wire::Abort> grant_and_abort() {
    transfer(name_room(9));
    wire::Grant grant = last_grant();
    grant.room = RoomId(1);
    grant.binding = Binding{0, 1};
    grant.attempt = AttemptId(1'000);
    wire::Abort abort;
    abort.room = grant.room;
    abort.binding = grant.binding;
    abort.attempt = grant.attempt;
    abort.cause = Failure{FailureCode::kAborted, FailureWhere::kLocal, "gone", {}, 0};
    return {grant, abort};
  }
};

TEST_F(Identity, AGrantWaitsForItsSender) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(400);
  expect_status(d(), receiver, KvPoll::kTransferring);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(50);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(Identity, ButNotForEver) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(790);
  expect_status(d(), receiver, KvPoll::kTransferring);
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kRoomUnknown);
  EXPECT_NE(d().cause(receiver).find("unopened_room_timeout_ms"), std::string::npos);
  EXPECT_EQ(d().cell(receiver).released.size(), 1U);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(5);
  expect_failed(p(), sender, FailureCode::kRoomUnknown);
  expect_rest();
}

TEST_F(Identity, TheFirstCauseOfALateSenderStandsThoughTheTableIsFull) {
  options_.max_rooms = 1;
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(850);
  expect_failed(d(), receiver, FailureCode::kRoomUnknown);
  p().open(name_room(9));
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(5);
  expect_failed(p(), sender, FailureCode::kRoomUnknown);
  expect_rest();
}

TEST_F(Identity, TheTableOfWaitingGrantsIsBounded) {
  options_.max_unopened_grants = 2;
  engines();
  transfer(name_room(9));
  std::vector<std::uint64_t> receivers;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    receivers.push_back(receive(d(), name_room(i), {i + 10}));
  }
  world.run_for(50);
  expect_status(d(), receivers[0], KvPoll::kTransferring);
  expect_status(d(), receivers[1], KvPoll::kTransferring);
  expect_failed(d(), receivers[2], FailureCode::kTableFull);
  EXPECT_EQ(p().counter("unopened_grants_refused"), 1U);
  const std::uint64_t late = send(p(), name_room(3), {2});
  world.run_for(5);
  expect_failed(p(), late, FailureCode::kTableFull);
  expect_rest();
}

TEST_F(Identity, ALateGrantHearsTheSendersFirstCauseAtOnce) {
  engines();
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(1'100);
  expect_failed(p(), sender, FailureCode::kRoomTimeout);
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kRoomTimeout);
  EXPECT_NE(d().cause(receiver).find("no end of Bootstrapping"), std::string::npos);
  expect_rest();
}

TEST_F(Identity, ALateGrantHearsOfARefusedSender) {
  options_.max_rooms = 1;
  engines();
  const std::uint64_t other = p().open(name_room(9));
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(50);
  // The grant is waiting when its sender is refused for want of room.
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(20);
  expect_failed(p(), sender, FailureCode::kTableFull);
  expect_failed(d(), receiver, FailureCode::kTableFull);
  expect_status(p(), other, KvPoll::kBootstrapping);
  expect_rest();
}

TEST_F(Identity, TheMemoryOfEndedSendersIsBounded) {
  options_.max_ended_senders = 2;
  engines();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    p().abort(p().open(name_room(i)));
    world.run_for(1);
  }
  const std::uint64_t forgotten = receive(d(), name_room(1), {1});
  const std::uint64_t remembered = receive(d(), name_room(3), {3});
  world.run_for(50);
  expect_status(d(), forgotten, KvPoll::kTransferring);
  expect_failed(d(), remembered, FailureCode::kAborted);
  expect_rest();
}

TEST_F(Identity, TheSecondOpenOfARoomIsRefusedOnBothSides) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const std::uint64_t second_receiver = receive(d(), name_room(1), {8, 9});
  const std::uint64_t second_sender = send(p(), name_room(1), {8, 9}, 1);
  world.run_for(10);
  expect_failed(d(), second_receiver, FailureCode::kDuplicateRoom);
  expect_failed(p(), second_sender, FailureCode::kDuplicateRoom);
  EXPECT_EQ(d().cell(second_receiver).released.size(), 1U);
  EXPECT_EQ(p().cell(second_sender).released.size(), 2U) << "pages and aux slot";
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  expect_rest();
}

TEST_F(Identity, ARoomNumberIsReusedAtOnceWithAnotherBinding) {
  engines();
  const RoomPair old = reach(Stage::kWriting, name_room(1, 1));
  d().abort(old.receiver);
  const std::uint64_t receiver = receive(d(), name_room(1, 2), {11, 12, 13}, 1);
  const std::uint64_t sender = send(p(), name_room(1, 2), {14, 15, 16}, 1);
  world.run_for(20);
  heal();
  world.run_for(50);
  expect_failed(p(), old.sender, FailureCode::kAborted);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(Identity, ASenderOfTheFormerRequestNeverMeetsTheNextGrant) {
  engines();
  const std::uint64_t old_sender = send(p(), name_room(1, 1), {2});
  const std::uint64_t receiver = receive(d(), name_room(1, 2), {1});
  world.run_for(100);
  expect_status(p(), old_sender, KvPoll::kBootstrapping);
  expect_status(d(), receiver, KvPoll::kTransferring);
  EXPECT_EQ(world.fabric().writes_posted(), 0U);
  expect_rest();
}

TEST_F(Identity, ReplaysOfTheFormerAttemptLeaveTheNextAlone) {
  engines();
  const RoomPair old = reach(Stage::kWriting, name_room(1, 1));
  const wire::Grant old_grant = last_grant();
  d().abort(old.receiver);
  heal();
  world.run_for(50);
  const wire::Abort old_abort = world.links().last<wire::Abort>();
  const wire::Drained old_drained = world.links().last<wire::Drained>();
  const RoomPair next = reach(Stage::kWriting, name_room(1, 2));
  for (int i = 0; i < 3; ++i) {
    world.links().forge(d(), p(), old_grant);
    world.links().forge(d(), p(), old_abort);
    world.links().forge(p(), d(), old_drained);
    wire::Done done;
    done.room = old_grant.room;
    done.binding = old_grant.binding;
    done.attempt = old_grant.attempt;
    done.prefill_engine_epoch = p().self().engine_epoch;
    done.slot = old_grant.slot;
    done.generation = old_grant.generation;
    world.links().forge(p(), d(), done);
    world.links().forge(p(), d(), wire::Failed{done.room, done.binding, done.attempt, Failure{}});
    world.run_for(5);
  }
  expect_status(d(), next.receiver, KvPoll::kTransferring);
  expect_status(p(), next.sender, KvPoll::kTransferring);
  heal();
  world.run_for(50);
  expect_success(d(), next.receiver);
  expect_success(p(), next.sender);
  expect_rest();
}

TEST_F(Identity, AStaleGrantIsAnsweredAndChangesNothing) {
  engines();
  transfer(name_room(1));
  const wire::Grant old_grant = last_grant();
  d().clear(1);
  p().clear(1);
  world.run_for(300);
  transfer(name_room(2));  // Carries the risen mark.
  world.take_trace();
  world.links().forge(d(), p(), old_grant);
  world.run_for(20);
  EXPECT_EQ(world.take_trace(), R"(
p0 > d0 stale
)");
  EXPECT_EQ(d().counter("stale_answers"), 1U);
  expect_rest();
}

// Only who writes to a room may say that it is over.
TEST_F(Identity, AStaleAnswerOfAStrangerToTheRoomChangesNothing) {
  engines(1, 1);
  const RoomPair pair = reach(Stage::kWriting);
  world.add("p1", {Role::kPrefill, 0, 1, 32, options_, {}, {}});
  d().receive(PairsWanted{{world["p1"].row()}});
  world.run_for(50);
  world.links().forge(world["p1"], d(), wire::Stale{d().cell(pair.receiver).attempt, 9});
  world.run_for(10);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
}

// Urgent words overtake: the abort of an attempt can be here before its grant.
TEST_F(Identity, AnAbortThatOvertakesItsGrantIsRemembered) {
  options_.max_ended_senders = 0;  // So that nothing but the attempt itself can be remembered.
  engines();
  auto [grant, abort] = grant_and_abort();
  world.links().forge(d(), p(), abort);
  world.run_for(10);
  world.links().forge(d(), p(), grant);
  world.run_for(10);
  EXPECT_EQ(p().counter("late_grants"), 1U);
  EXPECT_EQ(world.links().last<wire::Failed>().cause.what, "gone");
  // Nobody waits for a sender: one that opens now finds no grant.
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(50);
  expect_status(p(), sender, KvPoll::kBootstrapping);
  EXPECT_EQ(world.fabric().writes_posted(), 7U);
  expect_rest();
}

// What found no place among the remembered must not be served later, when there is place again: its
// writer has said Drained.
TEST_F(Identity, AnAbortThatFoundNoPlaceStillStopsItsGrant) {
  options_.max_ended_senders = 0;
  options_.max_tombstones = 2;
  engines();
  auto [grant, abort] = grant_and_abort();
  for (const std::uint64_t attempt : {500, 501, 1'000}) {
    abort.attempt = AttemptId(attempt);
    world.links().forge(d(), p(), abort);
    world.run_for(10);
    EXPECT_EQ(world.links().last<wire::Drained>().attempt, abort.attempt);
  }
  // The mark rises above those that are remembered.
  abort.attempt = AttemptId(400);
  abort.low_water_mark = AttemptId(900);
  world.links().forge(d(), p(), abort);
  world.run_for(10);
  EXPECT_EQ(p().snapshot().tombstones, 0U);
  world.links().forge(d(), p(), grant);
  world.run_for(10);
  EXPECT_EQ(world.links().last<wire::Failed>().cause.code, FailureCode::kTableFull);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(50);
  expect_status(p(), sender, KvPoll::kBootstrapping);
  EXPECT_EQ(world.fabric().writes_posted(), 7U);
  expect_rest();
}

// Rule 7: the mark stays below every attempt with a grant or an unacknowledged word.
TEST_F(Identity, TheLowWaterMarkWaitsForTheOldestOpenAttempt) {
  engines();
  const RoomPair oldest = reach(Stage::kWriting, name_room(1));
  ASSERT_EQ(d().cell(oldest.receiver).attempt, AttemptId(1));
  receive(d(), name_room(2), {11});
  world.run_for(20);
  EXPECT_EQ(last_grant().attempt, AttemptId(2));
  EXPECT_EQ(last_grant().low_water_mark, AttemptId(1));
  heal();
  world.run_for(500);
  receive(d(), name_room(3), {12});
  world.run_for(20);
  EXPECT_EQ(last_grant().low_water_mark, AttemptId(2));
  expect_rest();
}

TEST_F(Identity, TombstonesGoWithTheLowWaterMark) {
  engines();
  for (std::uint64_t i = 1; i <= 50; ++i) {
    const RoomPair pair = transfer(name_room(i));
    d().poll(pair.receiver);
    d().clear(pair.receiver);
    p().clear(pair.sender);
    world.run_for(10);
  }
  EXPECT_LE(p().snapshot().tombstones, 2U);
  expect_rest();
}

// Attempts are numbered at the grant: a room that has not been given its pages yet names none, and
// whatever it will be granted lies above the mark.
TEST_F(Identity, ARoomThatWaitsForItsPagesDoesNotHoldTheMarkDown) {
  options_.input_timeout_ms = 60'000;
  engines();
  const std::uint64_t idle = d().open(name_room(999));
  d().init_receiver(idle);
  for (std::uint64_t i = 1; i <= 50; ++i) {
    const RoomPair pair = transfer(name_room(i));
    expect_success(d(), pair.receiver);
    d().clear(pair.receiver);
    p().clear(pair.sender);
    world.run_for(10);
  }
  EXPECT_EQ(d().cell(idle).attempt, AttemptId{});
  EXPECT_GE(last_grant().low_water_mark, AttemptId(49));
  EXPECT_LE(p().snapshot().tombstones, 2U);
  d().give(idle, {9});
  const std::uint64_t sender = send(p(), name_room(999), {8});
  world.run_for(50);
  EXPECT_EQ(d().cell(idle).attempt, AttemptId(51));
  expect_success(d(), idle);
  expect_success(p(), sender);
  expect_rest();
}

// An Abort that names no attempt is owed all the same: its room is kept until it is acknowledged.
TEST_F(Identity, AnAbortBeforeTheGrantIsRepeatedUntilItIsAcknowledged) {
  options_.input_timeout_ms = 60'000;
  engines();
  transfer(name_room(1));
  const RoomPair pair = reach(Stage::kWaitingForPages, name_room(2));
  world.links().drop<wire::Abort>(3);
  d().abort(pair.receiver);
  d().clear(pair.receiver);
  world.run_for(50);
  expect_status(p(), pair.sender, KvPoll::kBootstrapping);
  EXPECT_EQ(d().snapshot().rooms.size(), 2U) << "the first room's, and the one that owes an Abort";
  world.run_for(1'000);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
  EXPECT_EQ(d().snapshot().rooms.size(), 1U);
  expect_rest();
}

// A room whose fence does not end holds the mark down; the table stays within its limit meanwhile.
TEST_F(Identity, TombstonesAreBoundedWhileTheMarkIsHeldDown) {
  options_.max_tombstones = 5;
  options_.fence_timeout_ms = 60'000;
  engines();
  const RoomPair first = transfer(name_room(998));
  p().clear(first.sender);
  world.fabric().hold_fences = true;
  const std::uint64_t idle = receive(d(), name_room(999), {30});
  world.run_for(20);
  d().abort(idle);
  world.run_for(20);
  world.fabric().hold_fences = false;
  std::uint32_t refused = 0;
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const std::uint64_t receiver = receive(d(), name_room(i), {1, 2, 3});
    const std::uint64_t sender = send(p(), name_room(i), {4, 5, 6});
    world.run_for(150);
    if (d().poll(receiver) == KvPoll::kFailed) {
      ++refused;
      expect_failed(d(), receiver, FailureCode::kTableFull);
      expect_failed(p(), sender, FailureCode::kTableFull);
    }
    d().clear(receiver);
    p().clear(sender);
    world.run_for(10);
  }
  EXPECT_EQ(refused, 16U) << "the attempt that holds the mark down is remembered, too";
  EXPECT_EQ(p().snapshot().tombstones, 5U);
  world.fabric().release_fences();
  world.run_for(20);
  transfer(name_room(30));
  const RoomPair next = transfer(name_room(31));
  expect_success(d(), next.receiver);
  EXPECT_LE(p().snapshot().tombstones, 5U);
  expect_rest();
}

TEST_F(Identity, GrantsOfTwoLaunchesOfTheDecodeEngineDoNotMix) {
  world.add("p0", {Role::kPrefill, 0, 1, 32, options_, {}, {}});
  world.add("d0", {Role::kDecode, 0, 2, 32, options_, {}, {}});
  world.add("d1", {Role::kDecode, 1, 2, 32, options_, {}, [](wire::Introduction& self) {
                     self.engine_epoch = EngineEpoch(777);
                   }});
  const std::uint64_t first = receive(d(0), name_room(1), {1}, -1, 2);
  const std::uint64_t second = receive(d(1), name_room(1), {1}, -1, 2);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(50);
  expect_failed(p(), sender, FailureCode::kEngineEpochMismatch);
  expect_failed(d(0), first, FailureCode::kEngineEpochMismatch);
  expect_failed(d(1), second, FailureCode::kEngineEpochMismatch);
  expect_rest();
}

TEST_F(Identity, WritersOfTwoLaunchesOfThePrefillEngineDoNotMix) {
  world.add("p0", {Role::kPrefill, 0, 2, 32, options_, {}, {}});
  world.add("p1", {Role::kPrefill, 1, 2, 32, options_, {}, [](wire::Introduction& self) {
                     self.engine_epoch = EngineEpoch(777);
                   }});
  world.add("d0", {Role::kDecode, 0, 1, 32, options_, {}, {}});
  const std::uint64_t receiver = receive(d(), name_room(1), {1});
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kEngineEpochMismatch);
  expect_rest();
}

TEST_F(Identity, AmountsThatDoNotFitFailAtOnce) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2});
  const std::uint64_t sender = send(p(), name_room(1), {4, 5, 6});
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kDoneMismatch);
  expect_failed(p(), sender, FailureCode::kDoneMismatch);
  EXPECT_NE(d().cause(receiver).find("2 pages granted, the sender announced 3"), std::string::npos);
  // The grant first, the sender's announcement after it.
  const std::uint64_t early = receive(d(), name_room(2), {1, 2});
  const std::uint64_t late = p().open(name_room(2));
  world.run_for(50);
  p().init_sender(late, 3);
  world.run_for(50);
  expect_failed(d(), early, FailureCode::kDoneMismatch);
  expect_failed(p(), late, FailureCode::kDoneMismatch);
  expect_rest();
}

}  // namespace
}  // namespace kvferry::core::fake
