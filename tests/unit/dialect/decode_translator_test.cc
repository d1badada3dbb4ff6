// The translator between the real core of a decode rank and what stock SGLang prefill ranks say: no
// sockets, virtual time.
#include "dialect/sglang/decode_translator.h"

#include <gmock/gmock.h>

#include "decode_rig.h"

namespace kvferry::sglang {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// --- the ordinary life of a room ---

TEST(DecodeTranslator, ARoomSucceedsOnceSglangSaysSoAndItsAuxIsThere) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_THAT(rig.take_sent(),
              ElementsAre("7000 mooncake-registration", "7000 metadata room 1 pages [5, 6] aux 3"));
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  rig.write_aux(3, 1, 4711);
  rig.succeed(1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kSuccess);
  EXPECT_EQ(rig.record(3, 1).first_token, 4711);
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
  EXPECT_THAT(rig.take_not_done(), IsEmpty());
  EXPECT_THAT(rig.take_released(), IsEmpty()) << "the caller owns them";
}

TEST(DecodeTranslator, NothingIsSaidOfARoomBeforeTheConnectionIsUp) {
  DecodeRig rig;
  rig.connects = false;
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 mooncake-registration"));
  EXPECT_EQ(rig.status(receiver), KvPoll::kBootstrapping);
  rig.connect(0);
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 metadata room 1 pages [5, 6] aux 3"));
}

TEST(DecodeTranslator, ThePrefixIsToldInTokensAndAFullHitHasNoPages) {
  DecodeRig rig;
  rig.grant(1, {5}, 3, 2);
  const core::ReceiverId hit = rig.grant(2, {}, 4, 3);
  rig.take_not_done();
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 mooncake-registration",
                                           "7000 metadata room 1 pages [5] aux 3 prefix 32",
                                           "7000 metadata room 2 pages [] aux 4 prefix 48"));
  rig.write_aux(4, 2);
  rig.succeed(2);
  EXPECT_EQ(rig.status(hit), KvPoll::kSuccess);
}

TEST(DecodeTranslator, EveryPrefillRankHearsOfTheRoomAndAllMustSucceed) {
  DecodeRig rig({2, 1});
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_THAT(rig.take_sent(),
              UnorderedElementsAre("7000 mooncake-registration", "7001 mooncake-registration",
                                   "7000 metadata room 1 pages [5, 6] aux 3",
                                   "7001 metadata room 1 pages [5, 6] aux 3"));
  rig.write_aux(3, 1);
  rig.succeed(1, 1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  rig.succeed(1, 1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring) << "the same rank again";
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("known already")));
  rig.succeed(1, 0);
  EXPECT_EQ(rig.status(receiver), KvPoll::kSuccess);
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
}

TEST(DecodeTranslator, ARankThatHoldsACopyGetsADummyAndIsNotWaitedFor) {
  DecodeRig rig({2, 1, true});
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_THAT(rig.take_sent(),
              UnorderedElementsAre("7000 mooncake-registration", "7001 mooncake-registration",
                                   "7000 metadata room 1 pages [5, 6] aux 3", "7001 dummy room 1"));
  rig.write_aux(3, 1);
  rig.succeed(1, 1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("writes nothing for it")));
  rig.succeed(1, 0);
  EXPECT_EQ(rig.status(receiver), KvPoll::kSuccess);
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
}

TEST(DecodeTranslator, ADecodeRankOfTwoTellsHowManyPrefillIsToExpect) {
  DecodeRig rig({1, 2});
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_THAT(rig.take_sent(), Contains("7000 metadata room 1 pages [5, 6] aux 3 of 2"));
  rig.write_aux(3, 1);
  rig.succeed(1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kSuccess);
}

TEST(DecodeTranslator, NixlHasItsOwnRegistrationMetadataAndDummies) {
  DecodeRig rig({2, 1, true, true});
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_THAT(rig.take_sent(),
              UnorderedElementsAre("7000 nixl-registration", "7001 nixl-registration",
                                   "7000 metadata room 1 pages [5, 6] aux 3", "7001 dummy room 1"));
  rig.arrive(RoomStatus{RoomId(1), KvPoll::kFailed, 0, "xfer ERR"});
  EXPECT_EQ(rig.cause(receiver), "xfer ERR");
}

// Stock SGLang's only control thread would end with that registration.
TEST(DecodeTranslator, NixlIsToldNothingByADecodeRankWithAnotherShareOfTheHeads) {
  DecodeRig rig({2, 1, false, true});
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  EXPECT_THAT(rig.cause(receiver), HasSubstr("prefill has 2 TP ranks and decode 1"));
  EXPECT_THAT(rig.take_sent(), IsEmpty());
}

// SGLang acknowledges then, but what NIXL has given up may arrive all the same.
TEST(DecodeTranslator, AfterAnErrorOfNixlsAnAcknowledgementProvesNothing) {
  for (const bool nixl : {true, false}) {
    DecodeRig rig({1, 1, false, nixl});
    const core::ReceiverId receiver = rig.grant(1);
    rig.arrive(RoomStatus{RoomId(1), KvPoll::kFailed, 0, "xfer ERR"});
    EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
    rig.acknowledge(1, 1);
    EXPECT_EQ(rig.take_released().empty(), nixl);
    EXPECT_EQ(rig.take_not_done().size(), nixl ? 1U : 0U);
    EXPECT_EQ(rig.translator().open_rooms(), nixl ? 1U : 0U);
  }
}

TEST(DecodeTranslator, NixlsAcknowledgementOfAnAbortFreesThePages) {
  DecodeRig rig({1, 1, false, true});
  rig.abort(rig.grant(1));
  EXPECT_THAT(rig.take_released(), IsEmpty());
  rig.acknowledge(1, 1);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
}

// --- aux ---

TEST(DecodeTranslator, TheLastDoneWaitsForTheRoomNumberInTheAuxSlot) {
  DecodeRig rig({2, 1});
  const core::ReceiverId receiver = rig.grant(1);
  rig.succeed(1, 0);
  rig.succeed(1, 1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  rig.pass(milliseconds(20));
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  rig.write_aux(3, 1);
  rig.pass(milliseconds(20));
  EXPECT_EQ(rig.status(receiver), KvPoll::kSuccess);
  EXPECT_FALSE(rig.translator().next_deadline());
}

TEST(DecodeTranslator, AuxThatDoesNotComeFailsTheRoom) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  rig.succeed(1);
  rig.pass(std::chrono::seconds(6));
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  EXPECT_THAT(rig.cause(receiver), HasSubstr("no aux came within 5000 ms"));
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6)) << "a rank that succeeded is quiet";
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
  EXPECT_FALSE(rig.translator().next_deadline());
}

TEST(DecodeTranslator, AuxOfAnotherRoomFailsTheRoomAtOnce) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  rig.write_aux(3, 77);
  rig.succeed(1);
  EXPECT_THAT(rig.cause(receiver), HasSubstr("aux of room 77 came to the slot of room 1"));
}

TEST(DecodeTranslator, WhatAnEarlierRoomLeftInTheSlotIsNotTakenForTheNext) {
  DecodeRig rig;
  rig.grant(1);
  rig.write_aux(3, 1);
  rig.succeed(1);
  const core::ReceiverId again = rig.grant(1);
  rig.succeed(1);
  EXPECT_EQ(rig.status(again), KvPoll::kTransferring);
  rig.write_aux(3, 1);
  rig.pass(milliseconds(20));
  EXPECT_EQ(rig.status(again), KvPoll::kSuccess);
}

TEST(DecodeTranslator, AuxInMessagesIsTakenForItsOwnSlotOfALiveRoomOnly) {
  DecodeRig rig;
  const auto aux = [](std::uint64_t room, std::uint32_t buffer, std::uint32_t slot,
                      std::size_t bytes) {
    AuxData out{RoomId(room), buffer, slot, std::vector<std::uint8_t>(bytes)};
    out.bytes.front() = 1;
    return out;
  };
  rig.arrive(aux(1, 4, 3, 64));  // no such room yet
  const core::ReceiverId receiver = rig.grant(1);
  rig.succeed(1);
  rig.arrive(aux(1, 4, 4, 64));  // another slot
  rig.arrive(aux(1, 5, 3, 64));  // no such buffer
  rig.arrive(aux(1, 4, 3, 63));  // another length
  rig.arrive(aux(1, 4, 3, 128));
  rig.arrive(aux(2, 4, 3, 64));  // another room
  rig.pass(milliseconds(20));
  EXPECT_EQ(rig.take_not_done().size(), 6U);
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  rig.arrive(aux(1, 0, 3, 64));
  rig.arrive(aux(1, 4, 3, 64));
  EXPECT_THAT(rig.take_not_done(), IsEmpty());
  rig.pass(milliseconds(20));
  EXPECT_EQ(rig.status(receiver), KvPoll::kSuccess);
  EXPECT_EQ(rig.record(3, 1).first_token, 1);
}

TEST(DecodeTranslator, AuxInMessagesOfAnAbortedRoomIsNotTaken) {
  DecodeRig rig;
  rig.abort(rig.grant(1));
  rig.take_not_done();
  rig.arrive(AuxData{RoomId(1), 3, 3, std::vector<std::uint8_t>(64)});
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("is not this room's")));
}

// --- failures and aborts ---

TEST(DecodeTranslator, AFailureThereFailsTheRoomWithItsReasonAndThePagesWait) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  rig.take_sent();
  rig.arrive(RoomStatus{RoomId(1), KvPoll::kFailed, 0, "the engine failed"});
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  EXPECT_EQ(rig.cause(receiver), "the engine failed");
  EXPECT_THAT(rig.take_released(), IsEmpty());
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 abort room 1 generation 1"));
  rig.acknowledge(1, 1);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
}

TEST(DecodeTranslator, AnAbortIsSaidAgainUntilItIsAcknowledged) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  rig.take_sent();
  rig.abort(receiver);
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 abort room 1 generation 1"));
  rig.pass(milliseconds(1'600));  // at 100, 300, 700, 1500
  EXPECT_EQ(rig.take_sent().size(), 4U);
  rig.pass(std::chrono::seconds(60));  // at 3.1 s, and then every 2 s
  EXPECT_EQ(rig.take_sent().size(), 30U);
  EXPECT_THAT(rig.take_released(), IsEmpty()) << "no time frees them";
  rig.acknowledge(1, 1);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
  rig.pass(std::chrono::seconds(60));
  EXPECT_THAT(rig.take_sent(), IsEmpty());
  EXPECT_THAT(rig.take_not_done(), IsEmpty());
}

TEST(DecodeTranslator, EveryWriterMustAcknowledgeAndEachIsAskedUntilItHas) {
  DecodeRig rig({2, 1});
  rig.abort(rig.grant(1));
  rig.take_sent();
  rig.acknowledge(1, 1, 1);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  rig.pass(milliseconds(150));
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 abort room 1 generation 1"));
  rig.acknowledge(1, 1, 1);
  EXPECT_THAT(rig.take_released(), IsEmpty()) << "the same rank again";
  rig.acknowledge(1, 1, 0);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
}

TEST(DecodeTranslator, AWriterThatSucceededIsQuietAndTheOtherIsAsked) {
  DecodeRig rig({2, 1});
  const core::ReceiverId receiver = rig.grant(1);
  rig.succeed(1, 0);
  rig.take_sent();
  rig.abort(receiver);
  EXPECT_THAT(rig.take_sent(), ElementsAre("7001 abort room 1 generation 1"));
  rig.succeed(1, 1);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6)) << "it had written all when ABORT came";
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
}

TEST(DecodeTranslator, ADummysAcknowledgementFreesNothingAndItsSilenceHoldsNothingBack) {
  DecodeRig rig({2, 1, true});
  rig.abort(rig.grant(1));
  EXPECT_THAT(rig.take_sent(), Contains("7001 abort room 1 generation 1"));
  rig.acknowledge(1, 1, 1);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  rig.acknowledge(1, 1, 0);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
  rig.abort(rig.grant(2));
  rig.acknowledge(2, 2, 0);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
  rig.take_sent();
  rig.pass(milliseconds(150));
  EXPECT_THAT(rig.take_sent(), ElementsAre("7001 abort room 2 generation 2"));
}

TEST(DecodeTranslator, OnlyTheAcknowledgementThatWasAskedForFreesPages) {
  DecodeRig rig({2, 1});
  const core::ReceiverId receiver = rig.grant(1);
  rig.acknowledge(1, 1, 0);  // before any ABORT
  rig.acknowledge(1, 1, 1);
  rig.abort(receiver);
  rig.acknowledge(1, 2, 0);                          // another generation
  rig.arrive(AbortAck{RoomId(1), 0, std::nullopt});  // none
  rig.arrive(AbortAck{RoomId(1), std::nullopt, std::nullopt});
  rig.arrive(AbortAck{RoomId(1), std::nullopt, 1});
  rig.acknowledge(1, 1, 2);  // a rank of another place
  rig.acknowledge(1, 1, 1'000);
  rig.acknowledge(2, 1, 0);  // another room
  rig.acknowledge(2, 1, 1);
  EXPECT_EQ(rig.take_not_done().size(), 10U);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  rig.acknowledge(1, 1, 0);
  rig.acknowledge(1, 1, 1);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
}

TEST(DecodeTranslator, AnAcknowledgementOfAnEarlierLifeFreesNothing) {
  DecodeRig rig;
  rig.abort(rig.grant(1));
  rig.acknowledge(1, 1);
  rig.take_released();
  rig.abort(rig.grant(1, {7}));
  rig.acknowledge(1, 1);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  rig.acknowledge(1, 2);
  EXPECT_THAT(rig.take_released(), ElementsAre(7));
}

// Prefill may answer for a room of which it has not heard all decode ranks, and write later.
TEST(DecodeTranslator, WithTwoDecodeRanksAnAcknowledgementCountsOnlyAfterAStatus) {
  DecodeRig rig({1, 2});
  rig.abort(rig.grant(1));
  rig.acknowledge(1, 1);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("may not have heard of all")));
  rig.take_sent();
  rig.pass(milliseconds(150));
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 abort room 1 generation 1"));
  rig.arrive(RoomStatus{RoomId(1), KvPoll::kFailed, 0, ""});
  EXPECT_THAT(rig.take_released(), IsEmpty()) << "a failure proves nothing by itself";
  rig.acknowledge(1, 1);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
}

TEST(DecodeTranslator, AnAbortBeforeTheGrantEndsTheRoomThere) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.open(1);
  rig.take_sent();
  rig.abort(receiver);
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 abort room 1"));
  rig.give_metadata(receiver);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6));
}

TEST(DecodeTranslator, ARoomNumberComesAgainOnlyWhenItsLastLifeIsOver) {
  DecodeRig rig;
  rig.abort(rig.grant(1));
  rig.take_sent();
  const core::ReceiverId early = rig.grant(1, {7}, 4);
  EXPECT_EQ(rig.status(early), KvPoll::kFailed);
  EXPECT_THAT(rig.cause(early), HasSubstr("an earlier life of this room is not over yet"));
  EXPECT_THAT(rig.take_released(), ElementsAre(7)) << "nothing was told of it";
  EXPECT_THAT(rig.take_sent(), IsEmpty());
  rig.acknowledge(1, 1);
  const core::ReceiverId later = rig.grant(1, {7}, 4);
  EXPECT_EQ(rig.status(later), KvPoll::kTransferring);
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 metadata room 1 pages [7] aux 4"));
}

TEST(DecodeTranslator, WhatSglangCanNotTakeIsRefusedWithItsReasonAndItHearsNothing) {
  DecodeRig rig;
  const auto refused = [&](std::uint64_t room, std::int64_t aux_slot) {
    const core::ReceiverId receiver = rig.grant(room, {9}, aux_slot);
    EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
    EXPECT_THAT(rig.take_released(), ElementsAre(9));
    return rig.cause(receiver);
  };
  EXPECT_THAT(refused(0, 3), HasSubstr("room 0: SGLang's are 1 to"));
  EXPECT_THAT(refused(std::uint64_t{1} << 63, 3), HasSubstr("room 9223372036854775808"));
  EXPECT_THAT(refused(1, -1), HasSubstr("no aux slot is given"));
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 mooncake-registration"));
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
  EXPECT_EQ(rig.take_not_done().size(), 3U);
}

TEST(DecodeTranslator, APrefillThatCanBeNoPairIsRefusedWithBothValues) {
  DecodeRig rig;
  rig.prefills[0].page_tokens = 32;
  const core::ReceiverId receiver = rig.grant(1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  EXPECT_THAT(rig.cause(receiver), HasSubstr("page_size_tokens: 16 here, 32 at the peer"));
}

TEST(DecodeTranslator, APrefillWhoseWritesCanNotBePlacedIsRefused) {
  DecodeRig rig;
  rig.is_reachable = false;
  EXPECT_THAT(rig.cause(rig.grant(1)), HasSubstr("nobody on this host listens there"));
}

TEST(DecodeTranslator, MessagesAndStatusesThatNobodyAwaitsAreCounted) {
  DecodeRig rig;
  rig.succeed(1);
  rig.grant(1);
  rig.arrive(RoomStatus{RoomId(1), KvPoll::kSuccess, 1, {}});
  rig.arrive(RoomStatus{RoomId(1), KvPoll::kWaitingForInput, 0, {}});
  rig.arrive(ChunkReady{});
  rig.arrive(StagingRequest{});
  rig.arrive(MooncakeRegistration{});
  EXPECT_THAT(rig.take_not_done(),
              ElementsAre(HasSubstr("nothing is asked of it"), HasSubstr("writes nothing for it"),
                          HasSubstr("prefill_complete is not offered"), HasSubstr("chunk-ready"),
                          HasSubstr("staging-req"), HasSubstr("mooncake-registration")));
}

// --- connections ---

TEST(DecodeTranslator, ALostConnectionFailsItsRoomsAndNothingFreesTheirPages) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  rig.lose(0);
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  EXPECT_THAT(rig.cause(receiver), HasSubstr("connection to a prefill rank of the room was lost"));
  rig.pass(std::chrono::seconds(5));
  rig.acknowledge(1, 1);
  rig.succeed(1);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
  rig.take_sent();

  // Registered again, and other rooms go on; this number does not.
  const core::ReceiverId next = rig.grant(2, {7}, 4);
  rig.pass(std::chrono::seconds(3));
  const core::ReceiverId same = rig.grant(1, {8}, 5);
  EXPECT_THAT(rig.take_sent(),
              ElementsAre("7000 mooncake-registration", "7000 metadata room 2 pages [7] aux 4"));
  EXPECT_THAT(rig.cause(same), HasSubstr("is not known to be over"));
  rig.write_aux(4, 2);
  rig.succeed(2);
  EXPECT_EQ(rig.status(next), KvPoll::kSuccess);
}

TEST(DecodeTranslator, TheLossOfOneOfTwoAbortsTheRoomAtTheOther) {
  DecodeRig rig({2, 1});
  const core::ReceiverId receiver = rig.grant(1);
  rig.take_sent();
  rig.lose(1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  EXPECT_THAT(rig.take_sent(), Contains("7000 abort room 1 generation 1"));
  rig.acknowledge(1, 1, 0);
  EXPECT_THAT(rig.take_released(), IsEmpty());
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
}

TEST(DecodeTranslator, TheLossOfADummyFailsTheRoom) {
  DecodeRig rig({2, 1, true});
  const core::ReceiverId receiver = rig.grant(1);
  rig.lose(1);
  EXPECT_EQ(rig.status(receiver), KvPoll::kFailed);
  rig.acknowledge(1, 1, 0);
  EXPECT_THAT(rig.take_released(), ElementsAre(5, 6)) << "it writes nothing";
}

TEST(DecodeTranslator, AnAbortedRoomIsOverWhenTheDummyThatOwesAnAnswerIsLost) {
  DecodeRig rig({2, 1, true});
  rig.abort(rig.grant(1));
  rig.acknowledge(1, 1, 0);
  EXPECT_EQ(rig.translator().open_rooms(), 1U);
  rig.lose(1);
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
}

TEST(DecodeTranslator, AProcessThatWasStoppedFindsItsPeersAlive) {
  DecodeRig rig;
  const core::ReceiverId receiver = rig.grant(1);
  rig.pass(milliseconds(100));
  rig.stand_still(std::chrono::seconds(30));
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
  EXPECT_EQ(rig.counter("sessions_ended"), 0U);
}

TEST(DecodeTranslator, WhileThePeerIsAwayItsRegistrationIsNotTakenForAConnection) {
  DecodeRig rig;
  rig.connects = false;
  const core::ReceiverId receiver = rig.grant(1);
  rig.lose(0);
  EXPECT_EQ(rig.downs(), 1U);
  rig.pass(std::chrono::seconds(3));
  EXPECT_EQ(rig.status(receiver), KvPoll::kBootstrapping);
  rig.connect(0);
  EXPECT_EQ(rig.status(receiver), KvPoll::kTransferring);
}

TEST(DecodeTranslator, ASessionThatTheCoreEndedIsAbortedThereAndTheEndpointStaysAsLong) {
  DecodeRig rig;
  rig.grant(1);
  rig.take_sent();
  const PeerId peer(1);
  ASSERT_TRUE(rig.translator().owns(peer));
  rig.translator().handle_hang_up(peer);
  rig.run();
  EXPECT_THAT(rig.take_sent(), ElementsAre("7000 abort room 1 generation 1"));
  EXPECT_EQ(rig.left(), 0U);
  rig.acknowledge(1, 1);
  EXPECT_EQ(rig.left(), 1U);
  EXPECT_EQ(rig.translator().open_rooms(), 0U);
  EXPECT_THAT(rig.take_released(), IsEmpty()) << "of a session that is over nothing is believed";
}

TEST(DecodeTranslator, StoppingAbortsWhatIsOpen) {
  DecodeRig rig;
  rig.grant(1);
  rig.take_sent();
  rig.give(core::StopRequested{
      Failure{FailureCode::kShuttingDown, FailureWhere::kLocal, "stopped", {}, 0}});
  EXPECT_THAT(rig.take_sent(), Contains("7000 abort room 1 generation 1"));
}

}  // namespace
}  // namespace kvferry::sglang
