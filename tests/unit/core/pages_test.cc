// Fences, quarantine and source pages: when memory goes back to its caller.
#include <gtest/gtest.h>

#include "core/page_ledger.h"
#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class Fences : public Scenario {};

TEST_F(Fences, SuccessWaitsForTheFence) {
  engines();
  const RoomPair pair = reach(Stage::kFencing);
  world.run_for(100);
  // Everything landed, Done is here, and a copy sent twice might still be under way.
  EXPECT_EQ(world.links().sent<wire::Done>(), 1U);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  world.fabric().release_fences();
  world.run_for(10);
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  heal();
  expect_rest();
}

TEST_F(Fences, AnOverdueFenceFreesNothingAndReadinessShowsIt) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.fabric().hold_fences = true;
  d().abort(pair.receiver);
  world.run_for(350);
  EXPECT_TRUE(d().snapshot().readiness_problems.empty());
  world.run_for(100);
  ASSERT_EQ(d().snapshot().readiness_problems.size(), 1U);
  EXPECT_EQ(d().snapshot().readiness_problems[0], "1 fences are overdue");
  EXPECT_EQ(d().counter("fences_overdue"), 1U);
  world.run_for(60'000);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
  EXPECT_EQ(d().snapshot().quarantined_pages, 3U);
  world.fabric().release_fences();
  world.run_for(10);
  EXPECT_TRUE(d().snapshot().readiness_problems.empty());
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  expect_rest();
}

// The caller's mistake must not make a page look free that a writer still writes (rule 4).
TEST(PageLedger, APageInAnotherGrantIsRefusedAndNotHandedBack) {
  const std::vector granted{PageIndex(3), PageIndex(4)};
  PageLedger ledger;
  ASSERT_TRUE(ledger.grant(GrantId(1), GrantedPages{granted, 0, {7}}));
  const GrantedPages wanted{{PageIndex(99), PageIndex(4)}, 0, {7, 8}};
  EXPECT_FALSE(ledger.grant(GrantId(2), wanted));
  const GrantedPages rest = ledger.not_granted(wanted);
  EXPECT_EQ(rest.pages, std::vector{PageIndex(99)});
  EXPECT_EQ(rest.aux_slot, -1);
  EXPECT_EQ(rest.state_slots, std::vector<std::uint32_t>{8});
  EXPECT_TRUE(ledger.is_consistent());
}

TEST_F(Fences, AFenceOfAnotherGrantIsCounted) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  d().receive(FenceCompleted{GrantId(1)});
  d().receive(FenceCompleted{GrantId(77)});
  world.run_for(10);
  EXPECT_EQ(d().counter("stale_fences"), 2U);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  expect_rest();
}

// Drained does not replace the fence where there is one (rule 3).
TEST_F(Fences, DrainedAloneFreesNothing) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForChunks);
  world.fabric().hold_fences = true;
  d().abort(pair.receiver);
  world.run_for(100);
  EXPECT_EQ(world.links().sent<wire::Drained>(), 1U);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
  expect_rest();
}

TEST_F(Fences, WithoutAFenceEveryWriterMustBeQuiet) {
  world.add_engines(2, 1, options_, TransportClass{true, false});
  world.fabric().on_write = [&](const PostedWrite& posted) {
    return posted.source == &p(1) ? WriteFate::kHold : WriteFate::kLand;
  };
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2});
  send(p(0), name_room(1), {3, 4});
  send(p(1), name_room(1), {3, 4});
  world.run_for(50);
  d().abort(receiver);
  world.run_for(100);
  EXPECT_TRUE(d().cell(receiver).released.empty()) << "one writer is quiet, the other is not";
  heal();
  world.run_for(20);
  EXPECT_EQ(d().cell(receiver).released.size(), 1U);
  expect_rest();
}

TEST_F(Fences, WithoutAFenceALostWriterLeavesItsPagesInQuarantine) {
  world.add_engines(1, 1, options_, TransportClass{true, false});
  const RoomPair pair = reach(Stage::kWriting);
  world.restart("p0");
  heal();
  world.run_for(60'000);
  expect_failed(d(), pair.receiver, FailureCode::kPeerRestarted);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
  EXPECT_EQ(d().snapshot().quarantined_pages, 3U);
  // The restarted writer does not answer for its predecessor.
  const wire::Grant grant = world.links().last<wire::Grant>();
  transfer(name_room(2));
  world.links().forge(p(), d(), wire::Drained{grant.attempt, grant.slot, grant.generation, true});
  world.run_for(20);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
}

// The proof of the transport stands for the word that a dead writer can't give.
TEST_F(Fences, WithoutAFenceTheTeardownOfALostWritersSessionFreesItsPages) {
  world.add_engines(1, 1, options_, TransportClass{true, false});
  const RoomPair pair = reach(Stage::kWriting);
  world.kill("p0");
  world.run_for(60'000);
  expect_failed(d(), pair.receiver, FailureCode::kPeerLost);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
  world.fabric().prove_teardown(d());
  world.run_for(10);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  EXPECT_EQ(d().snapshot().quarantined_pages, 0U);
  EXPECT_EQ(d().counter("sessions_torn_down"), 1U);
  expect_rest();
}

TEST_F(Fences, ATeardownOfALivingSessionFreesNothing) {
  world.add_engines(1, 1, options_, TransportClass{true, false});
  const RoomPair pair = reach(Stage::kWriting);
  const SessionEpoch living = world.fabric().last_write().session;
  d().abort(pair.receiver);
  world.run_for(20);
  for (const SessionEpoch session : {living, SessionEpoch{}, SessionEpoch(77)}) {
    d().receive(SessionTornDown{session});
  }
  world.run_for(20);
  EXPECT_EQ(d().counter("stale_teardowns"), 1U);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
  expect_rest();
}

TEST_F(Fences, ATeardownSpeaksForTheWritersOfItsSessionOnly) {
  world.add_engines(2, 1, options_, TransportClass{true, false});
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2});
  send(p(0), name_room(1), {3, 4});
  send(p(1), name_room(1), {3, 4});
  world.run_for(50);
  world.kill("p0");
  world.run_for(20);
  world.fabric().prove_teardown(d());
  world.run_for(20);
  EXPECT_EQ(d().counter("sessions_torn_down"), 1U);
  EXPECT_TRUE(d().cell(receiver).released.empty()) << "the other writer still writes";
  heal();
  world.run_for(20);
  EXPECT_EQ(d().cell(receiver).released.size(), 1U);
  expect_rest();
}

// Where there is a fence a teardown frees nothing: the fence alone does.
TEST_F(Fences, WithAFenceATeardownIsNotEnough) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.fabric().hold_fences = true;
  world.kill("p0");
  world.run_for(50);
  world.fabric().prove_teardown(d());
  world.run_for(50);
  EXPECT_EQ(d().counter("sessions_torn_down"), 1U);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty());
  world.fabric().release_fences();
  world.run_for(10);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  expect_rest();
}

// Half of the pool is lost to a prefill process that died, on a transport without a fence.
TEST_F(Fences, WithoutAFenceTheHealthyGoOnWhileHalfOfThePoolIsInQuarantine) {
  options_.quarantine_max_pages = 16;
  world.add_engines(1, 1, options_, TransportClass{true, false});
  world.add("p1", {Role::kPrefill, 0, 1, 32, options_, TransportClass{true, false},
                   [](wire::Introduction& self) { self.instance = "healthy"; }});
  const auto receive_from = [&](const std::string& instance, RoomName room,
                                std::vector<std::uint32_t> pages) {
    const std::uint64_t receiver = d().open(room);
    d().init_receiver(receiver, instance);
    d().give(receiver, std::move(pages));
    return receiver;
  };
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  std::vector<std::uint64_t> lost;
  for (std::uint32_t i = 0; i < 4; ++i) {
    lost.push_back(receive_from("prefill", name_room(i), {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}));
    send(p(0), name_room(i), {4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3});
  }
  const std::uint64_t going_on = receive_from("healthy", name_room(10), {20, 21});
  const std::uint64_t its_sender = send(p(1), name_room(10), {20, 21});
  world.run_for(50);
  world.kill("p0");
  world.run_for(500);
  EXPECT_EQ(d().snapshot().quarantined_pages, 16U);
  const std::uint64_t refused = receive_from("healthy", name_room(11), {22});
  world.run_for(20);
  expect_failed(d(), refused, FailureCode::kQuarantineFull);
  EXPECT_NE(d().cause(refused).find("quarantine_max_pages 16"), std::string::npos);
  ASSERT_EQ(d().snapshot().readiness_problems.size(), 1U);
  EXPECT_NE(d().snapshot().readiness_problems[0].find("cap 16"), std::string::npos);
  heal();
  world.run_for(50);
  expect_success(d(), going_on);
  expect_success(p(1), its_sender);
  world.fabric().prove_teardown(d());
  world.run_for(10);
  for (const std::uint64_t receiver : lost) {
    EXPECT_EQ(d().cell(receiver).released.size(), 1U);
  }
  EXPECT_TRUE(d().snapshot().readiness_problems.empty());
  const std::uint64_t next = receive_from("healthy", name_room(12), {0, 1});
  send(p(1), name_room(12), {0, 1});
  world.run_for(50);
  expect_success(d(), next);
  expect_rest();
}

TEST_F(Fences, AtItsCapTheQuarantineRefusesNewRooms) {
  options_.quarantine_max_pages = 3;
  engines();
  const RoomPair held = reach(Stage::kWriting, name_room(1));
  const std::uint64_t other = receive(d(), name_room(2), {11, 12});
  const std::uint64_t other_sender = send(p(), name_room(2), {11, 12});
  world.run_for(20);
  world.fabric().hold_fences = true;
  d().abort(held.receiver);
  world.run_for(20);
  const std::uint64_t refused = receive(d(), name_room(3), {20});
  world.run_for(20);
  expect_failed(d(), refused, FailureCode::kQuarantineFull);
  EXPECT_NE(d().cause(refused).find("quarantine_max_pages 3"), std::string::npos);
  EXPECT_EQ(d().snapshot().readiness_problems.size(), 1U);
  EXPECT_TRUE(d().cell(refused).released.size() == 1U);
  // Rooms that hold their grant go on in any case.
  heal();
  world.run_for(50);
  expect_success(d(), other);
  expect_success(p(), other_sender);
  EXPECT_TRUE(d().snapshot().readiness_problems.empty());
  const RoomPair next = transfer(name_room(4));
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_F(Fences, APageCannotBeGrantedTwice) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  const std::uint64_t second = d().open(name_room(2));
  d().init_receiver(second);
  d().give(second, {9, 9});
  world.run_for(10);
  EXPECT_EQ(d().code(second), FailureCode::kInvalidArgument);
  EXPECT_NE(d().cause(second).find("page 9 is listed twice"), std::string::npos);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
}

TEST_F(Fences, AGrantThatIsTooLongForOneMessage) {
  options_.control_message_max_bytes = 150;
  engines();
  const std::uint64_t receiver =
      receive(d(), name_room(1), {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kGrantTooLarge);
  EXPECT_EQ(d().cell(receiver).released.size(), 1U);
  expect_rest();
}

TEST_F(Fences, MoreGrantsThanASessionHasSlots) {
  options_.max_grant_slots = 2;
  engines();
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  std::vector<RoomPair> rooms;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    rooms.push_back({receive(d(), name_room(i), {i}), send(p(), name_room(i), {i})});
    world.run_for(10);
  }
  expect_failed(d(), rooms[2].receiver, FailureCode::kTableFull);
  expect_failed(p(), rooms[2].sender, FailureCode::kTableFull);
  heal();
  world.run_for(50);
  expect_success(d(), rooms[0].receiver);
  expect_success(d(), rooms[1].receiver);
  const RoomPair next = transfer(name_room(4));
  expect_success(d(), next.receiver);
  expect_rest();
}

class SourcePages : public Scenario {};

TEST_F(SourcePages, AreHeldUntilTheirWritesAreSettled) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.fabric().hold_fences = true;
  p().abort(pair.sender);
  world.run_for(300);
  EXPECT_TRUE(p().cell(pair.sender).released.empty());
  world.fabric().on_write = nullptr;
  world.fabric().release_held();
  world.run_for(10);
  EXPECT_EQ(p().cell(pair.sender).released.size(), 1U);
  EXPECT_EQ(world.links().sent<wire::Done>(), 0U) << "everything landed, after the end";
  expect_rest();
}

TEST_F(SourcePages, TheFenceOfDecodeEndsTheReadsToo) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  d().abort(pair.receiver);
  world.run_for(20);
  EXPECT_EQ(p().cell(pair.sender).released.size(), 1U);
  EXPECT_EQ(world.fabric().held(), 7U);
  expect_rest();
}

// Messages of one session overtake each other where a frame was lost.
TEST_F(SourcePages, TheFenceOfDecodeMayBeHeardBeforeItsAbort) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.links().hold<wire::Abort>();
  d().abort(pair.receiver);
  world.run_for(5);
  ASSERT_EQ(world.links().sent<wire::Fenced>(), 1U);
  ASSERT_FALSE(is_terminal(p().cell(pair.sender).status));
  world.links().release_held();
  world.run_for(5);
  EXPECT_EQ(p().cell(pair.sender).released.size(), 1U);
  world.fabric().lose_held();
  p().clear(pair.sender);
  world.run_for(5);
  EXPECT_EQ(p().counter("unknown_writes"), 7U);
  EXPECT_EQ(p().snapshot().rooms.size(), 0U) << "nothing is awaited of its unknown writes";
  expect_rest();
}

TEST_F(SourcePages, NothingIsPostedOrCommittedUnderAGrantThatIsFenced) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.links().hold<wire::Abort>();
  d().abort(pair.receiver);
  world.run_for(5);
  world.fabric().on_write = nullptr;
  world.fabric().release_held();
  world.run_for(5);
  EXPECT_EQ(world.fabric().refused_by_generation(), 7U);
  EXPECT_EQ(world.fabric().writes_posted(), 7U);
  EXPECT_FALSE(is_terminal(p().cell(pair.sender).status)) << "its cause comes with the Abort";
  world.links().release_held();
  world.run_for(5);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
  EXPECT_EQ(world.links().sent<wire::Done>(), 0U);
  expect_rest();
}

TEST_F(SourcePages, EveryDecodeRankMustHaveFenced) {
  options_.source_hold_timeout_ms = 60'000;
  engines(1, 2);
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kHold; };
  world.fabric().hold_fences = true;
  receive(d(0), name_room(1), {1, 2}, -1, 2);
  receive(d(1), name_room(1), {1, 2}, -1, 2);
  const std::uint64_t sender = send(p(), name_room(1), {7, 8});
  world.run_for(50);
  p().abort(sender);
  // The fence of the first rank is done long before the other's.
  world.links().hold<wire::Fenced>();
  world.fabric().release_fences();
  world.run_for(50);
  world.fabric().release_fences();
  world.run_for(50);
  EXPECT_TRUE(p().cell(sender).released.empty());
  world.links().release_held();
  world.run_for(50);
  EXPECT_EQ(p().cell(sender).released.size(), 1U);
  expect_rest();
}

TEST_F(SourcePages, GivingUpIsIrrevocable) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.fabric().hold_fences = true;
  p().abort(pair.sender);
  world.run_for(490);
  EXPECT_TRUE(p().cell(pair.sender).released.empty());
  world.run_for(60);
  EXPECT_EQ(p().cell(pair.sender).released.size(), 1U);
  EXPECT_EQ(p().counter("sources_given_up"), 1U);
  // Another request uses the pages, the old writes land late: no Done says that they did.
  p().memory().fill_page(4, 0, Binding{9, 9});
  world.fabric().on_write = nullptr;
  world.fabric().release_held();
  world.run_for(50);
  EXPECT_EQ(world.links().sent<wire::Done>(), 0U);
  expect_failed(d(), pair.receiver, FailureCode::kAborted);
  expect_rest();
}

TEST_F(SourcePages, AChunkThatComesAfterTheEndGoesStraightBack) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForChunks);
  d().abort(pair.receiver);
  world.run_for(20);
  p().send(pair.sender, {4, 5, 6});
  world.run_for(10);
  EXPECT_TRUE(p().pages_out().empty());
  expect_rest();
}

TEST_F(SourcePages, PagesThatComeAfterTheEndGoStraightBack) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForPages);
  p().abort(pair.sender);
  d().abort(pair.receiver);
  world.run_for(20);
  d().give(pair.receiver, {1, 2, 3});
  world.run_for(10);
  EXPECT_TRUE(d().pages_out().empty());
  expect_rest();
}

TEST(PageLedgerAlone, KeepsGrantsApart) {
  PageLedger ledger;
  const auto pages = [](std::uint32_t first, std::uint32_t count) {
    std::vector<PageIndex> list;
    for (std::uint32_t i = 0; i < count; ++i) {
      list.emplace_back(first + i);
    }
    return list;
  };
  ASSERT_TRUE(ledger.grant(GrantId(1), {pages(0, 3), 4, {7}}));
  EXPECT_FALSE(ledger.grant(GrantId(2), {pages(2, 2), -1, {}}));
  EXPECT_FALSE(ledger.grant(GrantId(2), {pages(5, 1), 4, {}})) << "its aux slot is taken";
  EXPECT_FALSE(ledger.grant(GrantId(2), {pages(5, 1), -1, {7}})) << "its state slot is taken";
  EXPECT_TRUE(ledger.is_consistent());
  ASSERT_TRUE(ledger.grant(GrantId(2), {pages(3, 2), -1, {}}));
  ledger.revoke(GrantId(1), Instant{});
  ledger.revoke(GrantId(1), Instant{});
  EXPECT_EQ(ledger.quarantined_pages(), 3U);
  EXPECT_TRUE(ledger.is_consistent());
  EXPECT_EQ(ledger.release(GrantId(1)).pages.size(), 3U);
  EXPECT_TRUE(ledger.release(GrantId(1)).pages.empty());
  EXPECT_EQ(ledger.quarantined_pages(), 0U);
  ASSERT_TRUE(ledger.grant(GrantId(3), {pages(0, 3), 4, {7}}));
  EXPECT_TRUE(ledger.is_consistent());
  EXPECT_EQ(ledger.granted_total(), 8U);
  EXPECT_EQ(ledger.returned_total(), 3U);
}

}  // namespace
}  // namespace kvferry::core::fake
