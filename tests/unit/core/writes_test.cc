// How single writes end, and what Success needs of them.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class Writes : public Scenario {
 protected:
  // The n-th write posted has this fate, the others land.
  void fate_of(std::uint64_t nth, WriteFate fate) {
    world.fabric().on_write = [this, nth, fate](const PostedWrite&) {
      return world.fabric().writes_posted() == nth ? fate : WriteFate::kLand;
    };
  }
  struct LastWrite {
    RoomPair pair;
    layout::Write write;
    SessionEpoch epoch;
  };
  // A room in mid-write.
  LastWrite reach_last_write() {
    engines();
    const RoomPair pair = reach(Stage::kWriting);
    return {pair, world.fabric().last_write().write, d().snapshot().peers.at(0).epoch};
  }
  // What the write's target answers on its lane.
  static WritesCompleted torn(SessionEpoch epoch, const layout::Write& write) {
    return {{{.session = epoch, .ticket = write.ticket, .torn = true}}};
  }
  static WritesCompleted refused_by_fence(SessionEpoch epoch, const layout::Write& write) {
    return {{{.session = epoch,
              .ticket = write.ticket,
              .outcome = layout::WriteOutcome::kRefused,
              .fenced = true}}};
  }
  void lose_decodes_word_while(const bool& is_late) {
    world.links().on_frame = [&is_late, before = world.links().on_frame](const FrameOnLink& frame) {
      const bool tells = frame.carries<wire::Abort>() || frame.carries<wire::Fenced>();
      return is_late && tells ? FrameFate::kDrop : before ? before(frame) : FrameFate::kDeliver;
    };
  }
  wire::Done honest_done(const RoomPair& pair) {
    const wire::Grant grant = world.links().last<wire::Grant>();
    wire::Done done;
    done.room = grant.room;
    done.binding = grant.binding;
    done.attempt = d().cell(pair.receiver).attempt;
    done.prefill_engine_epoch = p().self().engine_epoch;
    done.slot = grant.slot;
    done.generation = grant.generation;
    done.writes = 7;
    done.bytes = 3 * 16 + kAuxRecordBytes;
    done.pages = 3;
    return done;
  }
};

TEST_F(Writes, ARefusedOneIsPostedAgain) {
  engines();
  fate_of(3, WriteFate::kRefuse);
  const RoomPair pair = transfer(name_room(1));
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  EXPECT_EQ(world.fabric().writes_posted(), 8U);
  EXPECT_EQ(p().counter("writes_posted_again"), 1U);
  EXPECT_EQ(world.fabric().last_write().write.ticket, TicketId(8)) << "tickets are never reused";
  expect_rest();
}

TEST_F(Writes, OneThatIsRefusedThreeTimesFailsTheRoom) {
  engines();
  world.fabric().on_write = [](const PostedWrite& posted) {
    return posted.write.target_region == RegionId(1) && posted.write.target_item == 2
               ? WriteFate::kRefuse
               : WriteFate::kLand;
  };
  const RoomPair pair = transfer(name_room(1));
  expect_failed(p(), pair.sender, FailureCode::kWriteRefused);
  expect_failed(d(), pair.receiver, FailureCode::kWriteRefused);
  EXPECT_NE(
      d().cause(pair.receiver).find("refused a write of 8 bytes to item 2 of region 1 3 times"),
      std::string::npos)
      << d().cause(pair.receiver);
  EXPECT_EQ(world.fabric().writes_posted(), 9U);
  expect_rest();
}

TEST_F(Writes, AnUnknownOneFailsTheRoomAndIsNeverPostedAgain) {
  engines();
  fate_of(2, WriteFate::kLose);
  const RoomPair pair = transfer(name_room(1));
  expect_failed(p(), pair.sender, FailureCode::kWriteUnknown);
  expect_failed(d(), pair.receiver, FailureCode::kWriteUnknown);
  EXPECT_EQ(world.fabric().writes_posted(), 7U);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U) << "the fence needs no quiet";
  expect_rest();
}

// The bytes are there and nobody said so: still unknown, still a failure, and no harm.
TEST_F(Writes, AnUnknownOneThatLandedFailsTheRoomToo) {
  engines();
  fate_of(2, WriteFate::kLandUnknown);
  const RoomPair pair = transfer(name_room(1));
  expect_failed(p(), pair.sender, FailureCode::kWriteUnknown);
  expect_failed(d(), pair.receiver, FailureCode::kWriteUnknown);
  expect_rest();
}

TEST_F(Writes, DrainedWaitsForQuiet) {
  world.add_engines(1, 1, options_, TransportClass{true, false});
  fate_of(2, WriteFate::kLose);
  const RoomPair pair = transfer(name_room(1));
  expect_failed(d(), pair.receiver, FailureCode::kWriteUnknown);
  EXPECT_EQ(world.links().sent<wire::Drained>(), 0U);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty()) << "without a fence only quiet frees";
  EXPECT_EQ(d().snapshot().quarantined_pages, 3U);
  world.run_for(5'000);
  EXPECT_TRUE(d().cell(pair.receiver).released.empty()) << "a timeout alone never frees a page";
  world.fabric().say_quiet();
  world.run_for(20);
  EXPECT_EQ(world.links().sent<wire::Drained>(), 1U);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  expect_rest();
}

// D2: the target's fence is an end of an unknown ticket, too; quiet need never come.
TEST_F(Writes, AFenceSettlesWhatIsUnknown) {
  engines();
  fate_of(2, WriteFate::kLose);
  const RoomPair pair = transfer(name_room(1));
  expect_failed(p(), pair.sender, FailureCode::kWriteUnknown);
  EXPECT_EQ(p().snapshot().tickets, 0U);
  EXPECT_EQ(p().cell(pair.sender).released.size(), 1U);
  p().clear(pair.sender);
  d().clear(pair.receiver);
  world.run_for(500);
  EXPECT_TRUE(p().snapshot().rooms.empty());
}

TEST_F(Writes, AWriteThatBecomesUnknownAfterTheFenceIsSettledToo) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  d().abort(pair.receiver);
  world.run_for(20);
  EXPECT_EQ(p().snapshot().tickets, 7U);
  const SessionEpoch epoch = p().snapshot().peers.at(0).epoch;
  for (std::uint64_t ticket = 1; ticket <= 7; ++ticket) {
    p().receive(WritesCompleted{{{epoch, TicketId(ticket), layout::WriteOutcome::kUnknown}}});
  }
  world.run_for(20);
  EXPECT_EQ(p().snapshot().tickets, 0U);
  expect_rest();
}

TEST_F(Writes, ATornOneFailsTheRoom) {
  engines();
  fate_of(1, WriteFate::kTear);
  const RoomPair pair = transfer(name_room(1));
  expect_failed(d(), pair.receiver, FailureCode::kWriteTorn);
  expect_failed(p(), pair.sender, FailureCode::kWriteTorn);
  EXPECT_FALSE(d().memory().is_canary(1));
  expect_rest();
}

// The target's answer on a lane may come before its Abort: the first cause is the same.
TEST_F(Writes, ATornOneFailsBothEndsForTheSameCauseWhoeverHearsOfItFirst) {
  const auto [pair, write, epoch] = reach_last_write();
  p().receive(torn(epoch, write));
  world.run_for(10);
  expect_status(p(), pair.sender, KvPoll::kTransferring);
  d().receive(WriteTorn{layout::Landing{epoch, write.slot, write.generation, write.ticket,
                                        write.target_region, write.target_item, 0, 8}});
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kWriteTorn);
  expect_failed(p(), pair.sender, FailureCode::kWriteTorn);
  EXPECT_EQ(p().cell(pair.sender).failure->where, FailureWhere::kPeer);
}

// A fence in mid-copy tears it, too: what ended the room at decode is the first cause here as well.
TEST_F(Writes, OneThatAFenceTearsEndsForWhatTheGrantWasFencedFor) {
  const auto [pair, write, epoch] = reach_last_write();
  bool is_late = true;
  lose_decodes_word_while(is_late);
  d().abort(pair.receiver);
  p().receive(torn(epoch, write));
  world.run_for(20);
  expect_status(p(), pair.sender, KvPoll::kTransferring);
  is_late = false;
  world.run_for(500);
  expect_failed(d(), pair.receiver, FailureCode::kAborted);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
}

// So does one that the fence refused: it is not posted again, and its refusal is no cause.
TEST_F(Writes, OneThatAFenceRefusesEndsForWhatTheGrantWasFencedFor) {
  const auto [pair, write, epoch] = reach_last_write();
  bool is_late = true;
  lose_decodes_word_while(is_late);
  d().abort(pair.receiver);
  p().receive(refused_by_fence(epoch, write));
  world.run_for(20);
  EXPECT_EQ(world.fabric().last_write().write.ticket, write.ticket) << "posted again";
  expect_status(p(), pair.sender, KvPoll::kTransferring);
  is_late = false;
  world.run_for(500);
  expect_failed(d(), pair.receiver, FailureCode::kAborted);
  expect_failed(p(), pair.sender, FailureCode::kAborted);
}

// Without decode's word it ends for its refusal, and never by a Done.
TEST_F(Writes, OneThatAFenceRefusedIsNoSuccessWhoeverKeepsSilent) {
  const auto [pair, write, epoch] = reach_last_write();
  p().receive(refused_by_fence(epoch, write));
  heal();
  world.run_for(1'900);
  expect_status(p(), pair.sender, KvPoll::kTransferring);
  world.run_for(200);
  expect_failed(p(), pair.sender, FailureCode::kWriteRefused);
  EXPECT_NE(p().cell(pair.sender).failure->what.find("its grant is over"), std::string::npos);
  expect_failed(d(), pair.receiver, FailureCode::kWriteRefused);
}

// Nor is there a Done while decode's word is awaited, though every other write has landed and the
// torn one is over.
TEST_F(Writes, ATornOneIsNoSuccessWhoeverKeepsSilent) {
  const auto [pair, write, epoch] = reach_last_write();
  p().receive(torn(epoch, write));
  p().receive(WritesQuiet{epoch, {write.ticket}});
  heal();
  world.run_for(1'900);
  expect_status(p(), pair.sender, KvPoll::kTransferring);
  world.run_for(200);
  expect_failed(p(), pair.sender, FailureCode::kWriteTorn);
  EXPECT_NE(p().cell(pair.sender).failure->what.find("stopped in the middle"), std::string::npos);
  expect_failed(d(), pair.receiver, FailureCode::kWriteTorn);
}

// What it owes to its peers and its caller goes on when the handle is gone.
TEST_F(Writes, AClearedSenderIsQuietWhenItsWritesAreOver) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  std::size_t drained = 0;
  const auto before = world.links().on_frame;
  world.links().on_frame = [&](const FrameOnLink& frame) {
    drained += frame.carries<wire::Drained>() ? 1 : 0;
    return before ? before(frame) : FrameFate::kDeliver;
  };
  p().clear(pair.sender);
  d().abort(pair.receiver);
  world.run_for(10);
  ASSERT_GT(p().snapshot().tickets, 0U);
  EXPECT_EQ(drained, 0U);
  world.fabric().on_write = nullptr;
  world.fabric().release_held();
  world.run_for(50);
  EXPECT_EQ(drained, 1U);
  EXPECT_TRUE(p().pages_out().empty());
}

TEST_F(Writes, ATornOneSaysWhichPageAndHow) {
  const auto [pair, write, epoch] = reach_last_write();
  d().receive(WriteTorn{
      layout::Landing{epoch, write.slot, write.generation, write.ticket, RegionId(1), 3, 0, 8},
      "landed altered: its digest is b, its source's was a"});
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kWriteTorn);
  EXPECT_EQ(d().cell(pair.receiver).failure->what,
            "a write of 8 bytes to item 3 of region 1 landed altered: its digest is b, its "
            "source's was a");
  expect_rest();
}

TEST_F(Writes, ALandingOfAFormerGenerationIsNotTheNewOwnersCredit) {
  engines();
  const RoomPair old = reach(Stage::kWriting);
  const SessionEpoch epoch = d().snapshot().peers.at(0).epoch;
  const layout::Write first = world.fabric().last_write().write;
  d().abort(old.receiver);
  heal();
  world.run_for(50);
  const RoomPair next = reach(Stage::kWriting, name_room(2));
  const layout::Write second = world.fabric().last_write().write;
  ASSERT_EQ(second.slot, first.slot) << "the slot is used again";
  ASSERT_NE(second.generation, first.generation);
  // A landing of the former attempt, reported late: every byte of the new grant, none of it its
  // own.
  for (std::uint32_t region = 0; region < 2; ++region) {
    for (std::uint32_t page = 1; page <= 3; ++page) {
      d().receive(WritesLanded{{layout::Landing{epoch, first.slot, first.generation, TicketId(1),
                                                RegionId(region), page, 0, 8}}});
      d().receive(WriteTorn{layout::Landing{epoch, first.slot, first.generation, TicketId(1),
                                            RegionId(region), page, 0, 8}});
    }
  }
  d().receive(WritesLanded{{layout::Landing{epoch, first.slot, first.generation, TicketId(1),
                                            RegionId(2), 0, 0, kAuxRecordBytes}}});
  world.run_for(10);
  EXPECT_EQ(d().counter("late_landings"), 7U);
  EXPECT_EQ(world.fabric().fences_ordered(), 1U) << "only the former room was fenced";
  expect_status(d(), next.receiver, KvPoll::kTransferring);
  heal();
  world.run_for(50);
  expect_success(d(), next.receiver);
  expect_rest();
}

TEST_F(Writes, ALandingAfterTheFenceIsIgnored) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForDone);
  const layout::Write write = world.fabric().last_write().write;
  const SessionEpoch epoch = d().snapshot().peers.at(0).epoch;
  const layout::Landing landing{
      epoch, write.slot,  write.generation, write.ticket, write.target_region, write.target_item,
      0,     write.length};
  d().receive(WritesLanded{{landing}});
  heal();
  world.run_for(200);
  expect_success(d(), pair.receiver);
  d().receive(WritesLanded{{landing}});
  d().receive(WriteTorn{landing});
  world.run_for(10);
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(Writes, ALandingOutsideTheGrantFailsTheRoom) {
  const auto [pair, write, epoch] = reach_last_write();
  d().receive(WritesLanded{
      {layout::Landing{epoch, write.slot, write.generation, write.ticket, RegionId(0), 30, 0, 8}}});
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kOutsideGrant);
  expect_rest();
}

TEST_F(Writes, DoneWithoutCoverageIsNoSuccess) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  world.links().forge(p(), d(), honest_done(pair));
  world.run_for(100);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  EXPECT_EQ(world.fabric().fences_ordered(), 0U);
  heal();
  world.run_for(50);
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(Writes, CoverageWithoutDoneIsNoSuccess) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForDone);
  world.run_for(500);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  EXPECT_EQ(world.fabric().fences_ordered(), 1U) << "the fence waits for nobody (rule 3)";
  world.run_for(3'000);
  expect_failed(d(), pair.receiver, FailureCode::kRoomTimeout);
  EXPECT_NE(d().cause(pair.receiver).find("Done of 1 of 1 writers"), std::string::npos);
  expect_rest();
}

TEST_F(Writes, TheDoneOfOneWriterOfTwoIsNoSuccess) {
  engines(2, 1);
  world.links().on_frame = [this](const FrameOnLink& frame) {
    return frame.from == &p(1) && frame.carries<wire::Done>() ? FrameFate::kDrop
                                                              : FrameFate::kDeliver;
  };
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2});
  const std::uint64_t first = send(p(0), name_room(1), {7, 8});
  send(p(1), name_room(1), {7, 8});
  world.run_for(400);
  expect_status(d(), receiver, KvPoll::kTransferring);
  expect_status(p(0), first, KvPoll::kTransferring);
  heal();
  world.run_for(500);
  expect_success(d(), receiver);
  expect_success(p(0), first);
  expect_rest();
}

TEST_F(Writes, ADoneWithOtherCountsFailsTheRoomAtOnce) {
  engines();
  const RoomPair pair = reach(Stage::kWriting);
  wire::Done done = honest_done(pair);
  done.bytes -= 1;
  world.links().forge(p(), d(), done);
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kDoneMismatch);
  expect_rest();
}

TEST_F(Writes, ADoneForFewerPagesFailsTheRoomAtOnce) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForDone);
  wire::Done done = honest_done(pair);
  done.pages = 2;
  world.links().forge(p(), d(), done);
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kDoneMismatch);
  expect_rest();
}

TEST_F(Writes, ADoneOfAnotherLaunchFailsTheRoom) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForDone);
  wire::Done done = honest_done(pair);
  done.prefill_engine_epoch = EngineEpoch(1);
  world.links().forge(p(), d(), done);
  world.run_for(10);
  expect_failed(d(), pair.receiver, FailureCode::kEngineEpochMismatch);
  expect_rest();
}

TEST_F(Writes, ADoneUnderAnotherNameChangesNothing) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForDone);
  for (int part = 0; part < 4; ++part) {
    wire::Done done = honest_done(pair);
    switch (part) {
      case 0:
        done.attempt = done.attempt.next();
        break;
      case 1:
        done.generation = done.generation.next();
        break;
      case 2:
        done.room = done.room.next();
        break;
      default:
        done.binding.high = 9;
        break;
    }
    world.links().forge(p(), d(), done);
  }
  world.run_for(10);
  expect_status(d(), pair.receiver, KvPoll::kTransferring);
  EXPECT_EQ(d().counter("stale_messages"), 4U);
  expect_rest();
}

TEST_F(Writes, AuxThatDoesNotFitFailsTheRoom) {
  engines();
  d().aux_verdict =
      Failure{FailureCode::kAuxInvalid, FailureWhere::kPeer, "crc: 1 computed, 2 stored", {}, -1};
  const RoomPair pair = transfer(name_room(1));
  expect_failed(d(), pair.receiver, FailureCode::kAuxInvalid);
  expect_failed(p(), pair.sender, FailureCode::kAuxInvalid);
  EXPECT_EQ(d().cell(pair.receiver).released.size(), 1U);
  expect_rest();
}

TEST_F(Writes, AnAuxSlotOfAnotherRequestIsFoundOut) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1}, 0);
  const std::uint64_t sender = p().open(name_room(1));
  p().init_sender(sender, 1, 0);
  p().memory().fill_aux(0, RoomId(1), Binding{5, 5});
  p().send(sender, {2});
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kAuxInvalid);
  EXPECT_NE(d().cause(receiver).find("binding"), std::string::npos) << d().cause(receiver);
  expect_rest();
}

TEST_F(Writes, ASenderWithoutAuxIsRefusedWhereDecodeWantsIt) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1}, 0);
  const std::uint64_t sender = send(p(), name_room(1), {2});
  world.run_for(50);
  expect_failed(d(), receiver, FailureCode::kAuxInvalid);
  expect_failed(p(), sender, FailureCode::kAuxInvalid);
  expect_rest();
}

TEST_F(Writes, MorePagesThanAnnouncedAreNeverCut) {
  engines();
  const RoomPair pair = reach(Stage::kWaitingForChunks);
  p().send(pair.sender, {4, 5, 6, 7});
  world.run_for(50);
  expect_failed(p(), pair.sender, FailureCode::kInvalidArgument);
  expect_failed(d(), pair.receiver, FailureCode::kInvalidArgument);
  EXPECT_EQ(world.fabric().writes_posted(), 0U);
  expect_rest();
}

}  // namespace
}  // namespace kvferry::core::fake
