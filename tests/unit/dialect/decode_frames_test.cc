// The decode translator without a core: frames in an order that the real one gives rarely, and
// every kind of message in every state of a room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_rig.h"

namespace kvferry::sglang {
namespace {

const PeerId kPeer{1};

Result<wire::TransportOffer> offer(const PrefillRank&) {
  return wire::TransportOffer{"process-vm", {}};
}

// A session with one prefill rank, played by hand.
class DecodeFrames : public ::testing::Test {
 protected:
  DecodeFrames()
      : aux_memory_(std::size_t{kRigAuxSlots} * kAuxRecordBytes),
        shadow_(*AuxShadow::make({RegionKind::kAux, 0, aux_memory_.data(), kAuxRecordBytes,
                                  kRigAuxSlots, MemoryKind::kHost},
                                 {{64, 64, 64, 64, 64}, false})),
        translator_({DecodeRig::self({}), DecodeRig::registration(false), offer}, *shadow_) {
    PrefillRank rank;
    rank.endpoint = DecodeRig::endpoint(0);
    rank.registry = "r:1";
    rank.page_tokens = 16;
    address_ = to_address(rank);
    translator_.handle_dial(kPeer, address_);
    translator_.handle_endpoint_up(DecodeRig::endpoint(0));
    greet(7);
  }
  void greet(std::uint8_t nonce) {
    wire::Hello hello;
    hello.nonce.fill(nonce);
    unnumbered({}, hello);
    const auto reply = heard<wire::HelloReply>();
    ASSERT_EQ(reply.size(), 1U);
    epoch_ = reply.front().epoch;
    next_ = 1;
    unnumbered({}, wire::HelloConfirm{epoch_, reply.front().nonce});
    ASSERT_EQ(heard<wire::HelloConfirmed>().size(), 1U);
  }
  void unnumbered(SessionEpoch epoch, wire::Message message) {
    wire::Frame frame{epoch, 0, 0, {}};
    frame.messages.push_back(std::move(message));
    translator_.handle_frame(kPeer, frame);
  }
  void numbered(std::uint64_t sequence, wire::Message message) {
    wire::Frame frame{epoch_, sequence, 0, {}};
    frame.messages.push_back(std::move(message));
    translator_.handle_frame(kPeer, frame);
  }
  void say(wire::Message message) { numbered(next_++, std::move(message)); }

  static wire::Grant grant(std::uint64_t attempt = 1, std::uint64_t room = 1) {
    wire::Grant out;
    out.room = RoomId(room);
    out.attempt = AttemptId(attempt);
    out.generation = Generation(attempt);
    out.pages = {PageIndex(5)};
    out.aux_slot = 3;
    return out;
  }
  static wire::Abort abort(std::uint64_t attempt = 1, std::uint64_t room = 1) {
    wire::Abort out;
    out.room = RoomId(room);
    out.attempt = AttemptId(attempt);
    out.generation = Generation(attempt);
    return out;
  }
  void collect() {
    for (TranslatorOutput& output : translator_.take_outputs()) {
      if (auto* frame = std::get_if<VirtualFrame>(&output)) {
        EXPECT_EQ(frame->key, address_.public_key);
        for (wire::Message& message : frame->frame.messages) {
          heard_.push_back(std::move(message));
        }
      } else if (auto* to = std::get_if<ToEndpoint>(&output)) {
        told_.push_back(std::move(to->message));
      }
    }
  }
  // What was said to the core, to SGLang, of one kind; each once.
  template <typename Kind>
  std::vector<Kind> heard() {
    return take<Kind>(heard_);
  }
  template <typename Kind>
  std::vector<Kind> told() {
    return take<Kind>(told_);
  }

  std::vector<std::byte> aux_memory_;
  std::unique_ptr<AuxShadow> shadow_;
  DecodeTranslator translator_;
  PeerAddress address_;
  SessionEpoch epoch_;
  std::uint64_t next_ = 1;

 private:
  template <typename Kind, typename Any>
  std::vector<Kind> take(std::vector<Any>& from) {
    collect();
    std::vector<Kind> found;
    std::erase_if(from, [&](const Any& each) {
      if (const auto* kind = std::get_if<Kind>(&each)) {
        found.push_back(*kind);
        return true;
      }
      return false;
    });
    return found;
  }
  std::vector<wire::Message> heard_;
  std::vector<Message> told_;
};

TEST_F(DecodeFrames, AGrantThatItsAbortOvertookIsNotCarriedOut) {
  say(abort());
  EXPECT_EQ(heard<wire::Drained>().size(), 1U) << "nothing was told to SGLang";
  say(grant());
  EXPECT_THAT(told<MooncakeMetadata>(), ::testing::IsEmpty());
  EXPECT_EQ(translator_.open_rooms(), 0U);
  wire::Grant next = grant(2);
  next.low_water_mark = AttemptId(2);
  say(next);
  EXPECT_EQ(told<MooncakeMetadata>().size(), 1U);
}

TEST_F(DecodeFrames, ARepeatedFrameIsDoneOnceAndOneBeyondAGapNotAtAll) {
  numbered(1, grant());
  numbered(1, grant());
  EXPECT_EQ(told<MooncakeMetadata>().size(), 1U);
  EXPECT_EQ(heard<wire::Ack>().size(), 2U) << "the first may have been lost";
  numbered(3, grant(2, 2));
  EXPECT_THAT(told<MooncakeMetadata>(), ::testing::IsEmpty());
  EXPECT_THAT(heard<wire::Ack>(), ::testing::IsEmpty());
  // One that is repeated in part.
  wire::Frame frame{epoch_, 1, 0, {grant(), grant(2, 2)}};
  translator_.handle_frame(kPeer, frame);
  EXPECT_EQ(told<MooncakeMetadata>().size(), 1U);
}

TEST_F(DecodeFrames, FramesOfAnEarlierSessionAreNotHeard) {
  const SessionEpoch old = epoch_;
  greet(8);
  ASSERT_NE(epoch_, old);
  wire::Frame frame{old, 1, 0, {grant()}};
  translator_.handle_frame(kPeer, frame);
  EXPECT_THAT(told<MooncakeMetadata>(), ::testing::IsEmpty());
  EXPECT_THAT(heard<wire::Ack>(), ::testing::IsEmpty());
}

TEST_F(DecodeFrames, ANewSessionAbortsWhatTheOldOneGranted) {
  say(grant());
  greet(8);
  const auto aborts = told<AbortRoom>();
  ASSERT_EQ(aborts.size(), 1U);
  EXPECT_EQ(aborts.front().generation, 1U);
  translator_.handle(AbortAck{RoomId(1), 0, 1});
  EXPECT_THAT(heard<wire::Drained>(), ::testing::IsEmpty()) << "its session is over";
  EXPECT_EQ(translator_.open_rooms(), 0U);
}

TEST_F(DecodeFrames, TheSameHelloGetsTheSameAnswer) {
  wire::Hello hello;
  hello.nonce.fill(7);
  unnumbered({}, hello);
  const auto reply = heard<wire::HelloReply>();
  ASSERT_EQ(reply.size(), 1U);
  EXPECT_EQ(reply.front().epoch, epoch_);
}

TEST_F(DecodeFrames, AConfirmationWithoutTheNonceOpensNothing) {
  wire::Hello hello;
  hello.nonce.fill(9);
  unnumbered({}, hello);
  const auto reply = heard<wire::HelloReply>();
  ASSERT_EQ(reply.size(), 1U);
  unnumbered({}, wire::HelloConfirm{reply.front().epoch, {}});
  EXPECT_THAT(heard<wire::HelloConfirmed>(), ::testing::IsEmpty());
  epoch_ = reply.front().epoch;
  numbered(1, grant());
  EXPECT_THAT(told<MooncakeMetadata>(), ::testing::IsEmpty());
}

TEST_F(DecodeFrames, AHeartbeatIsAnsweredWithOne) {
  unnumbered(epoch_, wire::Heartbeat{});
  EXPECT_EQ(heard<wire::Heartbeat>().size(), 1U);
}

TEST_F(DecodeFrames, WhatIsNotAVirtualAddressIsNotOwned) {
  EXPECT_TRUE(translator_.owns(address_));
  EXPECT_FALSE(translator_.owns(PeerAddress{address_.endpoint, ""}));
  EXPECT_FALSE(translator_.owns(PeerAddress{"10.0.0.9:7001", address_.public_key}));
  EXPECT_FALSE(translator_.owns(PeerId(2)));
  translator_.handle_frame(PeerId(2), wire::Frame{});
  translator_.handle_hang_up(PeerId(2));
  translator_.handle_endpoint_lost(DecodeRig::endpoint(3));
  translator_.handle_endpoint_up(DecodeRig::endpoint(3));
}

TEST_F(DecodeFrames, RoomsHaveALimit) {
  DecodeTranslatorConfig config{DecodeRig::self({}), DecodeRig::registration(false), offer};
  config.max_rooms = 1;
  DecodeTranslator small(config, *shadow_);
  small.handle_dial(kPeer, address_);
  small.handle_endpoint_up(DecodeRig::endpoint(0));
  wire::Hello hello;
  hello.nonce.fill(7);
  small.handle_frame(kPeer, wire::Frame{{}, 0, 0, {hello}});
  std::vector<wire::Message> said;
  const auto gather = [&] {
    for (TranslatorOutput& output : small.take_outputs()) {
      if (auto* frame = std::get_if<VirtualFrame>(&output)) {
        std::ranges::move(frame->frame.messages, std::back_inserter(said));
      }
    }
  };
  gather();
  const auto reply = std::get<wire::HelloReply>(said.back());
  small.handle_frame(kPeer, wire::Frame{{}, 0, 0, {wire::HelloConfirm{reply.epoch, reply.nonce}}});
  small.handle_frame(kPeer, wire::Frame{reply.epoch, 1, 0, {grant(), grant(2, 2)}});
  EXPECT_EQ(small.open_rooms(), 1U);
  said.clear();
  gather();
  std::vector<wire::Failed> failed;
  for (const wire::Message& message : said) {
    if (const auto* each = std::get_if<wire::Failed>(&message)) {
      failed.push_back(*each);
    }
  }
  ASSERT_EQ(failed.size(), 1U);
  EXPECT_EQ(failed.front().attempt, AttemptId(2));
  EXPECT_THAT(failed.front().cause.what, ::testing::HasSubstr("1 rooms are open here"));
}

// States of room 1: 0 unknown, 1 open, 2 one that failed there, 3 succeeded and waiting for aux,
// 4 done, 5 aborting, 6 over, 7 lost.
class EveryMessage : public DecodeFrames, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    const int state = GetParam();
    if (state >= 1) {
      say(grant());
    }
    if (state == 2) {
      translator_.handle(RoomStatus{RoomId(1), KvPoll::kFailed, 0, {}});
    }
    if (state == 3 || state == 4) {
      if (state == 4) {
        const std::uint64_t room = 1;
        std::memcpy(reinterpret_cast<std::byte*>(shadow_->pointers().back()) + 3 * 64, &room,
                    sizeof(room));
      }
      translator_.handle(RoomStatus{RoomId(1), KvPoll::kSuccess, 0, {}});
    }
    if (state == 5 || state == 6) {
      say(abort());
    }
    if (state == 6) {
      translator_.handle(AbortAck{RoomId(1), 0, 1});
    }
    if (state == 7) {
      translator_.handle_endpoint_lost(DecodeRig::endpoint(0));
    }
    heard<wire::Drained>();
    heard<wire::Done>();
    told<AbortRoom>();
  }
};

TEST_P(EveryMessage, OfAStrangerFreesNothingAndEndsNothing) {
  const std::vector<Message> messages = {
      MooncakeRegistration{},
      NixlRegistration{},
      MooncakeMetadata{},
      NixlMetadata{},
      RoomStatus{RoomId(1), KvPoll::kSuccess, 9, {}},
      RoomStatus{RoomId(1), KvPoll::kWaitingForInput, 0, {}},
      RoomStatus{RoomId(2), KvPoll::kSuccess, 0, {}},
      RoomStatus{RoomId(2), KvPoll::kFailed, 0, {}},
      AbortRoom{RoomId(1), std::nullopt, std::nullopt},
      AbortAck{RoomId(1), 0, 2},
      AbortAck{RoomId(1), 9, 1},
      AbortAck{RoomId(1), 0, std::nullopt},
      AbortAck{RoomId(1), std::nullopt, std::nullopt},
      AbortAck{RoomId(2), 0, 1},
      AuxData{RoomId(1), 1'000, 3, std::vector<std::uint8_t>(64)},
      AuxData{RoomId(1), 3, 1'000, std::vector<std::uint8_t>(64)},
      AuxData{RoomId(1), 3, 3, {}},
      AuxData{RoomId(2), 3, 3, std::vector<std::uint8_t>(64)},
      ChunkReady{},
      StagingRequest{},
      StagingResponse{},
      Watermark{},
      AwaitPrefill{}};
  const std::size_t open = translator_.open_rooms();
  for (const Message& message : messages) {
    translator_.handle(message);
    EXPECT_EQ(translator_.open_rooms(), open) << kind_name(message);
    EXPECT_THAT(heard<wire::Drained>(), ::testing::IsEmpty()) << kind_name(message);
    EXPECT_THAT(heard<wire::Done>(), ::testing::IsEmpty()) << kind_name(message);
    EXPECT_THAT(told<AbortRoom>(), ::testing::IsEmpty()) << kind_name(message);
  }
}

INSTANTIATE_TEST_SUITE_P(States, EveryMessage, ::testing::Range(0, 8));

}  // namespace
}  // namespace kvferry::sglang
