// Rooms that stock SGLang decode ranks ask a prefill rank for: the translator against the real
// core.
#include <gmock/gmock.h>

#include <set>

#include "prefill_rig.h"

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class PrefillRooms : public EitherFlavour {};

TEST_P(PrefillRooms, ARoomSucceedsOnceItsWritesLanded) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  ASSERT_EQ(rig_.status(sender), KvPoll::kTransferring);
  ASSERT_EQ(rig_.posted().size(), 5U);  // two pages of K and V, aux
  EXPECT_EQ(rig_.posted()[0].write.target_item, 5U);
  EXPECT_EQ(rig_.posted()[4].write.target_item, 3U);
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success"));
  EXPECT_EQ(rig_.status(sender), KvPoll::kSuccess);
  EXPECT_EQ(rig_.translator().open_rooms(), 0U);
  EXPECT_THAT(rig_.take_not_done(), IsEmpty());
}

TEST_P(PrefillRooms, TheOrderOfRegistrationMetadataAndSenderDoesNotMatter) {
  const SenderId early = rig_.send(1);
  EXPECT_EQ(rig_.status(early), KvPoll::kBootstrapping);
  // Both at once: metadata waits until the session is live.
  rig_.hear(registration());
  rig_.hear(metadata(1));
  rig_.hear(metadata(2));
  rig_.run();
  EXPECT_EQ(rig_.status(early), KvPoll::kTransferring);
  const SenderId late = rig_.send(2);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success", "room 2 success"));
  EXPECT_EQ(rig_.status(late), KvPoll::kSuccess);
}

TEST_P(PrefillRooms, ThePrefixIsToldInPages) {
  rig_.arrive(registration());
  RoomRequest with_prefix = metadata(1);
  with_prefix.target.prefix_tokens = 48;
  rig_.arrive(with_prefix);
  rig_.open(1);
  EXPECT_EQ(rig_.prefix_pages_, 3U);
}

TEST_P(PrefillRooms, ASenderWaitsForEveryDecodeRank) {
  rig_.arrive(registration());
  DecodeRank second = registration("10.0.0.2:15004", 41'236);
  rig_.arrive(second);
  RoomRequest of_first = metadata(1);
  of_first.target.decode_ranks = 2;
  rig_.arrive(of_first);
  const SenderId sender = rig_.send(1);
  EXPECT_EQ(rig_.status(sender), KvPoll::kBootstrapping);
  RoomRequest of_second = of_first;
  of_second.name = second.name;
  of_second.target.endpoint = second.endpoint;
  rig_.arrive(of_second);
  EXPECT_EQ(rig_.status(sender), KvPoll::kTransferring);
}

// Of two decode ranks each has half of the heads of a page here.
TEST_P(PrefillRooms, EachDecodeRankOfALargerEngineGetsItsHeads) {
  PrefillTranslatorConfig config = Rig::config();
  LayoutShape& own = config.self.layout;
  own.total_kv_heads = 2;
  own.heads = {0, 2};
  for (RegionShape& region : own.regions) {
    region.item_bytes *= holds_pages(region.kind) ? 2 : 1;
  }
  Rig rig(GetParam(), config);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    DecodeRank half = registration(fmt::format("name{}", rank), kFirstPort + rank);
    half.tp_size = 2;
    half.tp_rank = rank;
    rig.arrive(half);
    RoomRequest room = metadata(1, {5 + rank});
    room.name = half.name;
    room.target.endpoint = half.endpoint;
    room.target.decode_ranks = 2;
    rig.arrive(room);
  }
  const SenderId sender = rig.send(1, {1});
  std::map<std::uint32_t, std::set<std::uint64_t>> sources;  // by target page: where heads begin
  std::size_t aux = 0;
  for (const Rig::Posted& each : rig.posted()) {
    if (each.write.target_region == kAuxRegion) {
      ++aux;
    } else {
      sources[each.write.target_item].insert(each.write.source_offset % 8);
      EXPECT_EQ(each.write.length, 4U);
    }
  }
  EXPECT_EQ(aux, 2U);
  EXPECT_THAT(sources, ElementsAre(Pair(5, ElementsAre(0)), Pair(6, ElementsAre(4))));
  rig.finish_writes();
  EXPECT_THAT(rig.take_sent(), ElementsAre("room 1 success", "room 1 success"));
  EXPECT_EQ(rig.status(sender), KvPoll::kSuccess);
}

TEST_P(PrefillRooms, AnAbortIsAcknowledgedOnceNothingIsWrittenAnyMore) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(abort_of(1));
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.cause(sender), HasSubstr("aborted by the decode rank"));
  rig_.arrive(abort_of(1));  // said again
  EXPECT_THAT(rig_.take_sent(), IsEmpty()) << "writes are under way";
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
  rig_.arrive(abort_of(1, 10));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 10"));
}

// The control of the test above: while the outcome of a write is not known, there is no word of it.
TEST_P(PrefillRooms, AnUnknownWriteHoldsTheAcknowledgementBack) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  rig_.send(1);
  rig_.arrive(abort_of(1));
  rig_.finish_writes(layout::WriteOutcome::kUnknown);
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.become_quiet();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
}

TEST_P(PrefillRooms, AnAbortWithoutGenerationFailsTheRoomAndIsNotAnswered) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(abort_of(1, std::nullopt));
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  EXPECT_EQ(rig_.translator().open_rooms(), 0U);
}

TEST_P(PrefillRooms, AnAbortBeforeAnyMetadataEndsTheRoomAndIsAcknowledgedAtOnce) {
  rig_.arrive(registration());
  const SenderId sender = rig_.open(1);
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  rig_.arrive(AbortRoom{RoomId(1), RankEndpoint{"10.0.0.2", 1}, 9});
  EXPECT_THAT(rig_.take_sent(), IsEmpty()) << "a stranger";
  EXPECT_THAT(rig_.take_not_done(), ElementsAre(HasSubstr("not registered")));
}

// A client may go away just when its room has succeeded.
TEST_P(PrefillRooms, AnAbortAfterTheEndDoesNotReachTheNextLifeOfTheRoom) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  rig_.send(1);
  rig_.finish_writes();
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success", "ack room 1 generation 9"));
  rig_.arrive(metadata(1));
  const SenderId next = rig_.send(1);
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(next), KvPoll::kSuccess);
  // Without a generation it may be of a life whose metadata never came.
  rig_.arrive(abort_of(1, std::nullopt));
  EXPECT_EQ(rig_.status(rig_.open(1)), KvPoll::kFailed);
}

// SGLang's decode registers with its first room and may abort that at once.
TEST_P(PrefillRooms, AnAbortThatComesBeforeTheSessionIsLiveIsNotForgotten) {
  const SenderId sender = rig_.open(1);
  rig_.hear(registration());
  rig_.hear(abort_of(1, std::nullopt));
  rig_.run();
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.cause(sender), HasSubstr("aborted by the decode rank"));

  const SenderId other = rig_.open(2);
  rig_.lose_endpoint(registration().endpoint);
  rig_.arrive(abort_of(2, std::nullopt));
  EXPECT_EQ(rig_.status(other), KvPoll::kFailed);
  EXPECT_THAT(rig_.cause(other), HasSubstr("aborted by the decode rank"));
}

TEST_P(PrefillRooms, AFailureHereIsToldWithItsReason) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.give(core::SenderAborted{
      sender, Failure{FailureCode::kAborted, FailureWhere::kLocal, "the client went away", {}, 0}});
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 failed: the client went away"));
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("ack room 1 generation 9"));
}

TEST_P(PrefillRooms, ARoomNumberMayComeAgainOnceItIsOver) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  rig_.arrive(metadata(1, {7, 8}));
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 failed: this room is still open here"));
  rig_.send(1);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success"));
  rig_.arrive(metadata(1, {7, 8}));
  const SenderId again = rig_.send(1);
  ASSERT_EQ(rig_.posted().size(), 5U);
  EXPECT_EQ(rig_.posted()[0].write.target_item, 7U);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 success"));
  EXPECT_EQ(rig_.status(again), KvPoll::kSuccess);
}

TEST_P(PrefillRooms, RoomsOfASessionAreLimited) {
  PrefillTranslatorConfig config = Rig::config();
  config.self.limits.max_grant_slots = 2;
  Rig rig(GetParam(), config);
  rig.arrive(registration());
  for (std::uint64_t room = 1; room <= 3; ++room) {
    rig.arrive(metadata(room));
  }
  EXPECT_THAT(rig.take_sent(), ElementsAre(HasSubstr("room 3 failed: 2 rooms are open here")));
}

TEST_P(PrefillRooms, PagesOutsideThePoolAreRefusedByTheCore) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1, {5, kPages}));
  const SenderId sender = rig_.send(1);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.posted(), IsEmpty());
  EXPECT_THAT(rig_.take_sent(), ElementsAre(HasSubstr("room 1 failed: granted page 32")));
  EXPECT_EQ(rig_.translator().open_rooms(), 0U);
}

TEST_P(PrefillRooms, MessagesOfOtherPartsAreCounted) {
  rig_.arrive(registration());
  rig_.arrive(Watermark{1, 2, "s"});
  rig_.arrive(StagingResponse{});
  rig_.arrive(AwaitPrefill{RoomId(1), {"10.0.0.2", 41'235}});
  EXPECT_THAT(rig_.take_not_done(),
              ElementsAre("watermark is not served", "staging-rsp is not served",
                          "bootstrap is not served"));
}

INSTANTIATE_TEST_SUITE_P(, PrefillRooms, ::testing::ValuesIn(kServedFlavours), name_of);

}  // namespace
}  // namespace kvferry::sglang
