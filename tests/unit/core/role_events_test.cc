// Events and messages that have no room, come twice, or were meant for the other role; what the
// status shows.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class RoleEvents : public Scenario {};

TEST_F(RoleEvents, OfTheOtherRoleAreCounted) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  for (const Event& event : {Event{SenderOpened{}}, Event{SenderInitialized{}}, Event{ChunkGiven{}},
                             Event{SenderAborted{}}, Event{SenderCleared{}},
                             Event{WritesCompleted{}}, Event{WritesQuiet{}}}) {
    d().receive(event);
  }
  for (const Event& event :
       {Event{ReceiverOpened{}}, Event{PrefillNamed{}}, Event{MetadataGiven{}},
        Event{ReceiverAborted{}}, Event{ReceiverCleared{}}, Event{PairsWanted{}},
        Event{WritesLanded{}}, Event{WriteTorn{}}, Event{FenceCompleted{}},
        Event{SessionTornDown{}}, Event{PrefillResolved{{}, std::vector<PeerRow>{}}}}) {
    p().receive(event);
  }
  world.run_for(5);
  EXPECT_EQ(d().counter("misdirected_events"), 7U);
  EXPECT_EQ(p().counter("misdirected_events"), 11U);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  expect_rest();
}

TEST_F(RoleEvents, MessagesOfTheOtherRoleAreCounted) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  for (const wire::Message& message :
       {wire::Message{wire::Done{}}, wire::Message{wire::Drained{}}, wire::Message{wire::Failed{}},
        wire::Message{wire::Progress{}}, wire::Message{wire::Stale{}}}) {
    world.links().forge(d(), p(), message);
  }
  for (const wire::Message& message :
       {wire::Message{wire::Grant{}}, wire::Message{wire::Abort{}}, wire::Message{wire::Consumed{}},
        wire::Message{wire::Fenced{}}}) {
    world.links().forge(p(), d(), message);
  }
  world.run_for(5);
  EXPECT_EQ(p().counter("misdirected_messages"), 5U);
  EXPECT_EQ(d().counter("misdirected_messages"), 4U);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(RoleEvents, OfUnknownRoomsPeersAndTicketsChangeNothing) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const SessionEpoch epoch = world.fabric().last_write().session;
  const ReceiverId no_receiver(900);
  const SenderId no_sender(900);
  for (const Event& event :
       {Event{PrefillNamed{no_receiver, "r", "i", 0}},
        Event{PrefillResolved{no_receiver, std::vector<PeerRow>{}}},
        Event{ReceiverAborted{no_receiver, Failure{}}}, Event{ReceiverCleared{no_receiver, false}},
        Event{LinkUp{PeerId(900)}}, Event{LinkDown{PeerId(900), LinkDown::Why::kClosed}},
        Event{LaneFailed{SessionEpoch(900), Failure{}, true}}}) {
    d().receive(event);
  }
  for (const Event& event :
       {Event{SenderInitialized{no_sender, 1, 0}}, Event{ChunkGiven{no_sender, {}, {}}},
        Event{SenderAborted{no_sender, Failure{}}}, Event{SenderCleared{no_sender}},
        Event{SenderInitialized{SenderId(pair.sender), 9, 5}},  // a second time
        Event{WritesQuiet{SessionEpoch(900), {TicketId(1)}}},
        Event{WritesQuiet{epoch, {TicketId(900)}}},
        Event{WritesCompleted{{{epoch, TicketId(900), layout::WriteOutcome::kLanded}}}}}) {
    p().receive(event);
  }
  world.run_for(5);
  EXPECT_EQ(p().counter("late_completions"), 1U);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  expect_rest();
}

TEST_F(RoleEvents, TheRegistryIsBelievedOnce) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  d().receive(PrefillResolved{ReceiverId(pair.receiver),
                              fail(FailureCode::kPrefillUnknown, "one answer too many")});
  world.run_for(5);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  expect_rest();
}

// A writer that holds the attempt for one that is over will never write to it.
TEST_F(RoleEvents, AStaleAnswerOfAWriterFailsItsRoom) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.links().forge(p(), d(), wire::Stale{d().cell(pair.receiver).attempt, 9});
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kRoomUnknown);
  expect_failed(p(), pair.sender, FailureCode::kRoomUnknown);
  expect_rest();
}

// Where the target copies, its own landings count, and nobody's word about them.
TEST_F(RoleEvents, ProgressCoversNothingWhereTheTargetCopies) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const wire::Grant grant = world.links().last<wire::Grant>();
  world.links().forge(p(), d(), wire::Progress{grant.attempt, grant.slot, grant.generation, 0, 3});
  world.run_for(10);
  EXPECT_EQ(d().counter("stale_messages"), 1U);
  EXPECT_EQ(world.fabric().fences_ordered(), 0U) << "nothing is covered";
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(RoleEvents, WhatIsNotUnderstoodIsAnsweredOnce) {
  engines();
  transfer(name_room(1));
  world.take_trace();
  // As the codec leaves a kind that it does not know.
  wire::Frame frame;
  frame.session = p().snapshot().peers.at(0).epoch;
  frame.messages.emplace_back(wire::Unsupported{77, false});
  p().receive(FrameArrived{d().key(), std::move(frame)});
  world.run_for(20);
  EXPECT_EQ(world.take_trace(), R"(
p0 > d0 unsupported
)");
  EXPECT_EQ(p().counter("unsupported_messages"), 1U);
  EXPECT_EQ(d().counter("unsupported_messages"), 1U);
  expect_success(d(), transfer(name_room(2)).receiver);
  expect_rest();
}

TEST_F(RoleEvents, AnAcknowledgementOfWhatWasNeverSaidIsCounted) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  wire::Frame frame;
  frame.session = p().snapshot().peers.at(0).epoch;
  frame.acknowledge = 1'000'000;
  frame.messages.emplace_back(wire::Ack{});
  p().receive(FrameArrived{d().key(), std::move(frame)});
  world.run_for(5);
  EXPECT_EQ(p().counter("impossible_acknowledgements"), 1U);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(RoleEvents, AGrantThatComesTwiceWaitsOnce) {
  engines();
  transfer(name_room(9));
  receive(d(), name_room(1), {10});
  world.run_for(20);
  world.links().forge(d(), p(), world.links().last<wire::Grant>());
  world.run_for(5);
  EXPECT_EQ(p().counter("duplicate_grants"), 1U);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(50);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(RoleEvents, AChunkThatComesWhileTheEndedRoomIsStillReadGoesBackWithTheRest) {
  engines();
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  world.fabric().hold_fences = true;
  receive(d(), name_room(1), {1, 2, 3});
  const std::uint64_t sender = p().open(name_room(1));
  p().init_sender(sender, 3);
  p().send(sender, {4, 5});
  world.run_for(50);
  p().abort(sender);
  world.run_for(10);
  p().send(sender, {6});
  world.run_for(10);
  EXPECT_EQ(p().pages_out().size(), 3U) << "writes read two of them";
  world.fabric().on_write = nullptr;
  world.fabric().release_held();
  world.run_for(20);
  EXPECT_TRUE(p().pages_out().empty());
  expect_rest();
}

TEST_F(RoleEvents, MorePagesThanAnnouncedFailTheRoom) {
  engines();
  receive(d(), name_room(1), {1, 2});
  const std::uint64_t sender = p().open(name_room(1));
  p().init_sender(sender, 2);
  p().send(sender, {4, 5, 6});
  world.run_for(50);
  expect_failed(p(), sender, FailureCode::kInvalidArgument);
  EXPECT_NE(p().cause(sender).find("given 3 pages, init() announced 2"), std::string::npos);
  expect_rest();
}

// Who asks for a peer that was given up hears the reason at once.
TEST_F(RoleEvents, ARoomForARefusedPeerFailsAtOnce) {
  engines();
  const std::vector<PeerRow> former = world.prefill_rows("prefill");
  d().receive(PairsWanted{former});
  world.run_for(100);
  world.restart("p0");
  world.run_for(200);  // another key answers, again and again
  const std::uint64_t receiver = d().open(name_room(1));
  d().give(receiver, {1});
  d().receive(PrefillResolved{ReceiverId(receiver), former});
  world.run_for(5);
  expect_failed(d(), receiver, FailureCode::kPeerRestarted);
  EXPECT_EQ(d().cell(receiver).released.size(), 1U);
}

TEST_F(RoleEvents, NamingThePrefillOfAnEndedRoomAsksNobody) {
  engines();
  const std::uint64_t receiver = d().open(name_room(1));
  d().abort(receiver);
  world.run_for(5);
  d().init_receiver(receiver);
  world.run_for(50);
  EXPECT_TRUE(d().snapshot().peers.empty());
  expect_failed(d(), receiver, FailureCode::kAborted);
  expect_rest();
}

TEST_F(RoleEvents, TheStatusShowsSomeRoomsAndCountsAll) {
  engines();
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  for (std::uint32_t i = 1; i <= 3; ++i) {
    receive(d(), name_room(i), {i});
    send(p(), name_room(i), {i});
  }
  world.run_for(50);
  for (Process* process : {&d(), &p()}) {
    const Snapshot view = process->snapshot(2);
    EXPECT_EQ(view.room_count, 3U);
    ASSERT_EQ(view.rooms.size(), 2U);
    EXPECT_EQ(view.rooms[0].state, "Transferring");
    EXPECT_EQ(view.rooms[0].pages, 1U);
    EXPECT_NE(view.rooms[0].attempt, AttemptId{});
  }
  EXPECT_EQ(d().snapshot().rooms[0].grant_state, "granted");
  EXPECT_EQ(p().snapshot().rooms[0].grant_state, "posting");
  EXPECT_EQ(p().snapshot().tickets, 6U);
  expect_rest();
}

TEST_F(RoleEvents, TheStatusNamesTheStateOfAPeer) {
  engines();
  EXPECT_TRUE(d().snapshot().peers.empty());
  world.links().block(p(), d());
  d().receive(PairsWanted{{p().row()}});
  world.run_for(1);
  EXPECT_EQ(d().snapshot().peers.at(0).state, "dialling");
  EXPECT_EQ(d().snapshot().peers.at(0).last_heard_ms, -1);
  world.links().unblock();
  world.links().drop<wire::Hello>(1'000);
  ASSERT_TRUE(
      world.run_until([&] { return d().snapshot().peers.at(0).state == "greeting"; }, 2'000));
  heal();
  ASSERT_TRUE(world.run_until([&] { return d().snapshot().peers.at(0).ready; }, 6'000));
  EXPECT_EQ(d().snapshot().peers.at(0).state, "live");
  EXPECT_TRUE(d().snapshot().peers.at(0).reason.empty());
  EXPECT_GE(d().snapshot().peers.at(0).last_heard_ms, 0);
  for (int i = 0; i < 3; ++i) {
    d().receive(LinkDown{PeerId(1), LinkDown::Why::kWrongKey});
  }
  world.run_for(0);
  EXPECT_EQ(d().snapshot().peers.at(0).state, "refused");
}

}  // namespace
}  // namespace kvferry::core::fake
