// Registrations of stock SGLang decode ranks, and lives of their sessions: the translator against
// the real core of a prefill rank.
#include <gmock/gmock.h>

#include "prefill_rig.h"

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PrefillSessions : public EitherFlavour {};

TEST_P(PrefillSessions, TheSameRegistrationAgainChangesNothing) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(registration());
  EXPECT_EQ(rig_.downs(), 0U);
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(sender), KvPoll::kSuccess);
}

// The writes under way go to addresses that the peer no longer means: nothing proves their end.
TEST_P(PrefillSessions, AnotherRegistrationEndsTheRoomsAndTheirAbortsAreNotAcknowledged) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  DecodeRank moved = registration();
  moved.memory.kv_pointers = {0x8000, 0x9000};
  rig_.arrive(moved);
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.take_sent(),
              ElementsAre("room 1 failed: the decode rank registered other memory"));
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  EXPECT_THAT(rig_.take_not_done(), ::testing::Contains(HasSubstr("ended before its writes did")));
  rig_.arrive(metadata(2));
  const SenderId next = rig_.send(2);
  EXPECT_EQ(rig_.status(next), KvPoll::kTransferring);
}

// The same words, said by a process that has taken the place of the first.
TEST_P(PrefillSessions, TheSameRegistrationOfAnotherProcessIsAnotherOne) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  Rig::process = {2};
  rig_.arrive(registration());
  Rig::process = {1};
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
}

TEST_P(PrefillSessions, AnotherSessionAtAnEndpointEndsTheOneBefore) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.arrive(registration("10.0.0.2:15099"));
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_EQ(rig_.translator().session_count(), 1U);
}

// Else an ABORT, which names an endpoint alone, could be taken for one of the other's.
TEST_P(PrefillSessions, ASessionThatMovesToAnothersEndpointEndsThatOne) {
  rig_.arrive(registration("a", kFirstPort));
  rig_.arrive(registration("b", kFirstPort + 1));
  rig_.lose_endpoint({"10.0.0.2", kFirstPort + 1});
  rig_.arrive(registration("b", kFirstPort));
  EXPECT_EQ(rig_.translator().session_count(), 1U);
  EXPECT_EQ(rig_.downs(), 2U);
}

TEST_P(PrefillSessions, ADecodeRankMayHaveMorePagesAndSlotsThanThisOne) {
  PrefillTranslatorConfig config = Rig::config();
  config.decode_pages = 2 * kPages;
  config.decode_aux_slots = 100;
  Rig rig(GetParam(), config);
  rig.arrive(registration());
  RoomRequest wanted = metadata(1, {kPages, 2 * kPages - 1});
  wanted.aux_index = 99;
  rig.arrive(wanted);
  rig.send(1);
  EXPECT_EQ(rig.posted().size(), 5U);
  rig.arrive(metadata(2, {2 * kPages}));
  EXPECT_EQ(rig.status(rig.send(2)), KvPoll::kFailed);
}

// At the limit a session that is over makes place; one that is not stays.
TEST_P(PrefillSessions, SessionsAreLimited) {
  PrefillTranslatorConfig config = Rig::config();
  config.max_sessions = 2;
  Rig rig(GetParam(), config);
  rig.arrive(registration("10.0.0.2:1", 1));
  rig.arrive(registration("10.0.0.2:2", 2));
  rig.arrive(registration("10.0.0.2:3", 3));
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("no place for 10.0.0.2:3")));
  rig.lose_endpoint({"10.0.0.2", 2});
  rig.arrive(registration("10.0.0.2:3", 3));
  EXPECT_THAT(rig.take_not_done(), IsEmpty());
  EXPECT_EQ(rig.left(), 1U);
  EXPECT_EQ(rig.translator().session_count(), 2U);
}

// The core's patience is 3 s. It hears what waits before it looks at its deadlines, so a peer that
// lives has to have said something meanwhile.
TEST_P(PrefillSessions, AStoppedProcessDoesNotLoseItsPeers) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.sleep(std::chrono::seconds(20));
  rig_.sleep(milliseconds(50));
  rig_.finish_writes();
  EXPECT_EQ(rig_.status(sender), KvPoll::kSuccess);
  EXPECT_EQ(rig_.downs(), 0U);
}

// What was a virtual peer is never dialled as something else.
TEST_P(PrefillSessions, AnAddressOfAnEarlierLifeIsRefused) {
  rig_.arrive(registration());
  ASSERT_FALSE(rig_.dialled().empty());
  const PeerAddress address = rig_.dialled().front();
  rig_.lose_endpoint(registration().endpoint);
  EXPECT_TRUE(rig_.translator().owns(address));
  rig_.translator().handle_dial(PeerId(77), address);
  const auto outputs = rig_.translator().take_outputs();
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_EQ(std::get<VirtualPeerDown>(outputs.front()).peer, PeerId(77));
}

TEST_P(PrefillSessions, ASessionThatTheCoreDoesNotTakeUpFailsItsRooms) {
  PrefillTranslator translator(Rig::config());
  translator.advance(Instant(std::chrono::seconds(1)));
  translator.handle(to_message(GetParam(), registration()));
  translator.handle(to_message(GetParam(), metadata(1)));
  translator.take_outputs();
  ASSERT_EQ(translator.next_deadline(), Instant(std::chrono::seconds(6)));
  translator.advance(Instant(milliseconds(5'999)));
  EXPECT_TRUE(translator.take_outputs().empty());
  translator.advance(*translator.next_deadline());
  const auto outputs = translator.take_outputs();
  ASSERT_FALSE(outputs.empty());
  const auto& status = std::get<RoomStatus>(std::get<ToEndpoint>(outputs.front()).message);
  EXPECT_EQ(status.status, KvPoll::kFailed);
  EXPECT_THAT(status.reason, HasSubstr("did not take the session up"));
  EXPECT_EQ(translator.open_rooms(), 0U);
  EXPECT_FALSE(translator.next_deadline());
}

// A status may have been lost with the connection, so that nothing of the session can be relied on.
TEST_P(PrefillSessions, ALostConnectionEndsTheRoomsAndTheNextRoomGreetsAgain) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.lose_endpoint(registration().endpoint);
  EXPECT_EQ(rig_.downs(), 1U);
  EXPECT_EQ(rig_.status(sender), KvPoll::kFailed);
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 1 failed: the connection to decode was lost"));
  rig_.arrive(abort_of(1));
  EXPECT_THAT(rig_.take_sent(), IsEmpty());
  rig_.arrive(metadata(2));
  const SenderId next = rig_.send(2);
  EXPECT_EQ(rig_.status(next), KvPoll::kTransferring);
}

TEST_P(PrefillSessions, ASessionThatTheCoreEndedIsGreetedAgainForTheNextRoom) {
  rig_.arrive(registration());
  rig_.arrive(metadata(1));
  const SenderId sender = rig_.send(1);
  rig_.finish_writes();
  ASSERT_EQ(rig_.status(sender), KvPoll::kSuccess);
  rig_.take_sent();
  for (std::uint64_t peer = 0; peer < 8; ++peer) {
    rig_.translator().handle_hang_up(PeerId(peer));
    rig_.give(core::LinkDown{PeerId(peer), core::LinkDown::Why::kRefused});
  }
  rig_.arrive(metadata(2));
  const SenderId next = rig_.send(2);
  EXPECT_EQ(rig_.status(next), KvPoll::kTransferring);
  rig_.finish_writes();
  EXPECT_THAT(rig_.take_sent(), ElementsAre("room 2 success"));
}

TEST_P(PrefillSessions, WhatCanNotBeServedIsRefusedWithItsReason) {
  const auto reason = [](const DecodeRank& registered, const RoomRequest& wanted) {
    Rig rig(GetParam());
    rig.arrive(registered);
    rig.arrive(wanted);
    const std::vector<std::string> sent = rig.take_sent();
    EXPECT_EQ(sent.size(), 1U);
    EXPECT_EQ(rig.translator().open_rooms(), 0U);
    return sent.empty() ? std::string() : sent.front();
  };
  DecodeRank other = registration();
  other.tp_size = 2;
  EXPECT_THAT(reason(other, metadata(1)),
              HasSubstr("1 KV heads on 1 TP ranks of prefill and 2 of decode"));
  other = registration();
  other.dcp_size = 2;
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("context parallelism of 2"));
  other = registration();
  other.memory.kv_pointers.push_back(0x9000);
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("decode has 3 KV buffers, prefill 2"));
  other = registration();
  other.memory.kv_item_bytes = 128;
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("has 128 bytes on decode, not the 64"));
  other = registration();
  other.memory.kv_item_bytes_of = {kItemBytes, 32};
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("buffer 1 has 32 bytes"));
  other = registration();
  other.memory.state_pointers = {{1}};
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("1 state components"));
  other = registration();
  other.memory.aux_pointers.clear();
  EXPECT_THAT(reason(other, metadata(1)), HasSubstr("no aux buffer"));

  RoomRequest wanted = metadata(1);
  wanted.name.second = "10.0.0.2:1";
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("10.0.0.2:1 is not registered here"));
  wanted = metadata(1);
  wanted.target.endpoint.port = 7;
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("is that of 10.0.0.2:41235"));
  wanted = metadata(1);
  wanted.target.prefix_tokens = 17;
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("no multiple of the page size 16"));
  wanted = metadata(1, {});
  wanted.is_dummy = true;
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("sends nothing"));
  EXPECT_THAT(reason(registration(), metadata(0)), HasSubstr("room 0 can't be used"));
  wanted = metadata(1);
  wanted.target.state_indices = {{1}};
  EXPECT_THAT(reason(registration(), wanted), HasSubstr("state components"));
}

// Each is answered in its own words (Rig::take compares); what has one name in both is two.
TEST(PrefillFlavours, DecodeRanksOfBothAreServedSideBySide) {
  Rig rig(Flavour::kMooncake);
  rig.arrive(registration("name", 1));
  RoomRequest first = metadata(1);
  first.name.second = "name";
  first.target.endpoint.port = 1;
  rig.arrive(first);
  rig.flavour = Flavour::kNixl;
  RoomRequest second = metadata(2);
  second.name.second = "name";
  second.target.endpoint.port = 2;
  rig.arrive(second);
  EXPECT_THAT(rig.take_sent(), ElementsAre("room 2 failed: session name is not registered here"));
  rig.arrive(registration("name", 2));
  rig.arrive(second);
  rig.send(1);
  rig.send(2);
  rig.finish_writes();
  EXPECT_THAT(rig.take_sent(), ElementsAre("room 1 success", "room 2 success"));
  EXPECT_EQ(rig.downs(), 0U);
}

TEST(PrefillNixl, TheRegistrationsNumberOfPagesIsTheBound) {
  PrefillTranslatorConfig config = Rig::config();
  config.decode_pages = 1'000;
  Rig rig(Flavour::kNixl, config);
  DecodeRank larger = registration();
  larger.kv_pages = 2 * kPages;
  rig.arrive(larger);
  rig.arrive(metadata(1, {0, 2 * kPages - 1}));
  rig.send(1);
  EXPECT_EQ(rig.posted().size(), 5U);
  rig.arrive(metadata(2, {2 * kPages}));
  EXPECT_EQ(rig.status(rig.send(2)), KvPoll::kFailed);
  EXPECT_THAT(rig.take_sent(), ElementsAre(HasSubstr("room 2 failed: granted page 64")));
}

TEST(PrefillNixl, APoolOfNoOrTooManyPagesIsRefused) {
  for (const std::uint64_t pages : {std::uint64_t{0}, std::uint64_t{1} << 31}) {
    Rig rig(Flavour::kNixl);
    DecodeRank other = registration();
    other.kv_pages = pages;
    rig.arrive(other);
    rig.arrive(metadata(1));
    EXPECT_THAT(rig.take_sent(), ElementsAre(HasSubstr("pages, served are 1 to 2147483647")));
  }
}

TEST(PrefillNixl, DeviceMemoryIsRefused) {
  Rig rig(Flavour::kNixl);
  DecodeRank on_device = registration();
  on_device.vram_buffers = 1;
  rig.arrive(on_device);
  rig.arrive(metadata(1));
  EXPECT_THAT(rig.take_sent(), ElementsAre(HasSubstr("room 1 failed: 1 of decode's 2 KV buffers "
                                                     "are device memory (VRAM)")));
}

TEST(PrefillNixl, ARegistrationWithoutMemoryKindsIsOfDeviceMemory) {
  NixlRegistration said = std::get<NixlRegistration>(to_message(Flavour::kNixl, registration()));
  EXPECT_EQ(decode_rank_of(said).vram_buffers, 0U);
  said.kv_memory_kinds.clear();
  EXPECT_EQ(decode_rank_of(said).vram_buffers, 2U);
}

// What an agent knows of its connections changes while it lives, and means nothing here.
TEST(PrefillNixl, AnAgentsMetadataIsNotLookedAt) {
  Rig rig(Flavour::kNixl);
  rig.arrive(registration());
  rig.arrive(metadata(1));
  const SenderId sender = rig.send(1);
  NixlRegistration again = std::get<NixlRegistration>(to_message(Flavour::kNixl, registration()));
  again.agent_metadata = {1, 2, 3};
  rig.arrive(Message(again));
  rig.finish_writes();
  EXPECT_EQ(rig.status(sender), KvPoll::kSuccess);
  EXPECT_EQ(rig.downs(), 0U);
}

// Of Mooncake the same is another process at an address that was another one's.
TEST(PrefillNixl, AnAgentsNameIsNotTakenFromItWhileItLives) {
  Rig rig(Flavour::kNixl);
  rig.arrive(registration("agent", kFirstPort));
  RoomRequest room = metadata(1);
  room.name.second = "agent";
  rig.arrive(room);
  const SenderId sender = rig.send(1);
  rig.arrive(registration("agent", kFirstPort + 1));
  EXPECT_THAT(rig.take_not_done(), ElementsAre(HasSubstr("which is that of 10.0.0.2:41235")));
  rig.finish_writes();
  EXPECT_EQ(rig.status(sender), KvPoll::kSuccess);
  EXPECT_THAT(rig.take_sent(), ElementsAre("room 1 success"));

  rig.lose_endpoint({"10.0.0.2", kFirstPort});
  rig.arrive(registration("agent", kFirstPort + 1));
  room.target.room = RoomId(2);
  room.target.endpoint.port = kFirstPort + 1;
  rig.arrive(room);
  EXPECT_EQ(rig.status(rig.send(2)), KvPoll::kTransferring);
}

INSTANTIATE_TEST_SUITE_P(, PrefillSessions, ::testing::ValuesIn(kServedFlavours), name_of);

}  // namespace
}  // namespace kvferry::sglang
