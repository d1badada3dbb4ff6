// Faults that know messages, over a link that keeps what is sent and gives what it was given.
#include "lab/rank/faulty_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "wire/codec.h"

namespace kvferry::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

const PeerId kPeer(1);

class KeptLink final : public net::ControlLink {
 public:
  std::string endpoint() const override { return "127.0.0.1:1"; }
  Status dial(PeerId, const PeerAddress& address) override {
    dialled.push_back(address.endpoint);
    return {};
  }
  void hang_up(PeerId) override {}
  net::LinkSend send(PeerId, std::vector<std::uint8_t> frame, net::LinkPriority) override {
    sent.push_back(std::move(frame));
    return net::LinkSend::kQueued;
  }
  void wait(Duration, int, std::vector<net::LinkEvent>& events, std::size_t) override {
    for (std::vector<std::uint8_t>& frame : to_come) {
      events.emplace_back(net::LinkFrame{"key", std::move(frame)});
    }
    to_come.clear();
  }

  std::vector<std::string> dialled;
  std::vector<std::vector<std::uint8_t>> sent;
  std::vector<std::vector<std::uint8_t>> to_come;
};

class FaultyLinkTest : public ::testing::Test {
 protected:
  FaultyLinkTest() {
    auto kept = std::make_unique<KeptLink>();
    kept_ = kept.get();
    link_ = make_faulty_link(std::move(kept), faults_, routes_, nullptr);
  }

  // Three numbered messages: 5 a grant, 6 an abort, 7 a fenced.
  static std::vector<std::uint8_t> frame() {
    wire::Frame frame;
    frame.session = SessionEpoch(3);
    frame.sequence = 5;
    frame.acknowledge = 2;
    frame.messages = {wire::Grant{}, wire::Abort{}, wire::Fenced{}};
    return wire::encode(frame);
  }
  using Numbered = std::pair<std::uint64_t, std::string>;
  static void add(const std::vector<std::uint8_t>& bytes, std::vector<Numbered>& out) {
    const auto frame = wire::decode(bytes);
    ASSERT_TRUE(frame);
    for (std::size_t i = 0; i < frame->messages.size(); ++i) {
      out.emplace_back(frame->sequence + i, wire::kind_name(frame->messages[i]));
    }
  }
  void send() { link_->send(kPeer, frame(), net::LinkPriority::kNormal); }
  std::vector<Numbered> sent() {
    std::vector<Numbered> out;
    for (const auto& bytes : kept_->sent) add(bytes, out);
    kept_->sent.clear();
    return out;
  }
  std::vector<Numbered> received() {
    std::vector<net::LinkEvent> events;
    link_->wait({}, -1, events, 100);
    std::vector<Numbered> out;
    for (const net::LinkEvent& event : events) add(std::get<net::LinkFrame>(event).bytes, out);
    return out;
  }
  void fault(MessageFault::What what, bool incoming = false, std::uint64_t first = 1) {
    MessageFault fault;
    fault.kind = "abort";
    fault.what = what;
    fault.incoming = incoming;
    fault.first = first;
    EXPECT_TRUE(faults_.add(fault));
  }

  MessageFaults faults_;
  Routes routes_;
  KeptLink* kept_;
  std::unique_ptr<net::ControlLink> link_;
};

TEST_F(FaultyLinkTest, WithoutAFaultFramesGoAsTheyAre) {
  send();
  EXPECT_THAT(kept_->sent, ElementsAre(frame()));
}

TEST_F(FaultyLinkTest, ADroppedMessageLeavesTheOthersTheirNumbers) {
  fault(MessageFault::What::kDrop);
  send();
  EXPECT_THAT(sent(), ElementsAre(Pair(5, "grant"), Pair(7, "fenced")));
  send();
  EXPECT_THAT(sent(), ElementsAre(Pair(5, "grant"), Pair(6, "abort"), Pair(7, "fenced")));
  EXPECT_EQ(faults_.struck(), 1U);
}

TEST_F(FaultyLinkTest, AMendedOneLosesNothingMore) {
  fault(MessageFault::What::kDrop);
  faults_.mend();
  send();
  EXPECT_THAT(kept_->sent, ElementsAre(frame()));
  EXPECT_EQ(faults_.struck(), 0U);
}

TEST_F(FaultyLinkTest, TheSecondOfAKindOnly) {
  fault(MessageFault::What::kDrop, false, 2);
  send();
  EXPECT_EQ(sent().size(), 3U);
  send();
  EXPECT_EQ(sent().size(), 2U);
}

TEST_F(FaultyLinkTest, ADuplicateComesTwice) {
  fault(MessageFault::What::kDuplicate);
  send();
  EXPECT_THAT(sent(),
              ElementsAre(Pair(5, "grant"), Pair(6, "abort"), Pair(6, "abort"), Pair(7, "fenced")));
}

TEST_F(FaultyLinkTest, WhatIsHeldGoesOnWhenItIsReleased) {
  fault(MessageFault::What::kHold);
  send();
  EXPECT_THAT(sent(), ElementsAre(Pair(5, "grant"), Pair(7, "fenced")));
  faults_.release();
  EXPECT_TRUE(received().empty());
  EXPECT_THAT(sent(), ElementsAre(Pair(6, "abort")));
}

TEST_F(FaultyLinkTest, OfWhatComesLikewise) {
  fault(MessageFault::What::kDrop, true);
  send();
  EXPECT_EQ(sent().size(), 3U);
  kept_->to_come = {frame()};
  EXPECT_THAT(received(), ElementsAre(Pair(5, "grant"), Pair(7, "fenced")));
}

TEST_F(FaultyLinkTest, AKindThatIsNoneIsRefused) {
  MessageFault fault;
  fault.kind = "telegram";
  const Status refused = faults_.add(fault);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().what, ::testing::HasSubstr("abort"));
}

TEST_F(FaultyLinkTest, DialsAreLedThroughRelays) {
  routes_.set("127.0.0.1:10", "127.0.0.1:20");
  EXPECT_TRUE(link_->dial(kPeer, {"127.0.0.1:10", "key"}));
  EXPECT_TRUE(link_->dial(kPeer, {"127.0.0.1:11", "key"}));
  EXPECT_THAT(kept_->dialled, ElementsAre("127.0.0.1:20", "127.0.0.1:11"));
}

}  // namespace
}  // namespace kvferry::lab
