// The links of the field, over one that keeps what it is told and gives what it was given.
#include "lab/rank/field_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "base/runtime_guards.h"
#include "wire/codec.h"

namespace kvferry::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Frame = std::vector<std::uint8_t>;
using Events = std::vector<net::LinkEvent>;

constexpr std::size_t kLargest = 4U << 20;
constexpr Duration kPatience = std::chrono::seconds(1);
const PeerId kOld(7);
const PeerId kNew(8);
const PeerAddress kAddress{"127.0.0.1:10", "key of the old life"};
const PeerAddress kSameEndpoint{"127.0.0.1:10", "key of the new life"};

class InnerLink final : public net::ControlLink {
 public:
  std::string endpoint() const override { return "127.0.0.1:1"; }
  Status dial(PeerId peer, const PeerAddress&) override {
    dialled.push_back(peer);
    return {};
  }
  void hang_up(PeerId peer) override { hung_up.push_back(peer); }
  net::LinkSend send(PeerId, Frame frame, net::LinkPriority) override {
    if (!answers.empty()) {
      const net::LinkSend answer = answers.front();
      answers.pop_front();
      if (answer != net::LinkSend::kQueued) return answer;
    }
    sent.push_back(std::move(frame));
    return net::LinkSend::kQueued;
  }
  void wait(Duration timeout, int, Events& events, std::size_t) override {
    timeouts.push_back(timeout);
    std::move(to_come.begin(), to_come.end(), std::back_inserter(events));
    to_come.clear();
  }

  std::vector<PeerId> dialled;
  std::vector<PeerId> hung_up;
  std::vector<Frame> sent;
  std::deque<net::LinkSend> answers;  // of the next sends; then kQueued
  std::vector<Duration> timeouts;
  Events to_come;
};

class FieldLinkTest : public ::testing::Test {
 protected:
  ~FieldLinkTest() override { missing_runtime_guard = RuntimeGuard::kNone; }

  void make(RuntimeGuard missing) {
    missing_runtime_guard = missing;
    auto inner = std::make_unique<InnerLink>();
    inner_ = inner.get();
    link_ = make_field_link(std::move(inner));
  }
  Events wait(std::size_t max_events = 100) {
    Events events;
    link_->wait(kPatience, -1, events, max_events);
    return events;
  }
  // What came, in words.
  static std::vector<std::string> names(const Events& events) {
    std::vector<std::string> out;
    for (const net::LinkEvent& event : events) {
      if (const auto* up = std::get_if<net::LinkConnected>(&event)) {
        out.push_back("up " + std::to_string(up->peer.value()));
      } else if (const auto* down = std::get_if<net::LinkLost>(&event)) {
        out.push_back("lost " + std::to_string(down->peer.value()));
      } else if (const auto* frame = std::get_if<net::LinkFrame>(&event)) {
        out.push_back("frame " + std::string(frame->bytes.begin(), frame->bytes.end()));
      } else {
        out.emplace_back(std::holds_alternative<net::LinkMalformed>(event) ? "malformed" : "other");
      }
    }
    return out;
  }
  std::vector<std::string> come(Events events) {
    inner_->to_come = std::move(events);
    return names(wait());
  }
  net::LinkSend send(PeerId peer, Frame frame = {'x'}) {
    return link_->send(peer, std::move(frame), net::LinkPriority::kNormal);
  }
  static net::LinkFrame part(std::string_view sender, bool more, std::string_view text) {
    Frame bytes{static_cast<std::uint8_t>(more)};
    bytes.insert(bytes.end(), text.begin(), text.end());
    return {std::string(sender), std::move(bytes)};
  }
  // Until the threads that cut have put so many parts there.
  void await_parts(std::size_t count) {
    while (inner_->sent.size() < count) wait();
  }

  InnerLink* inner_ = nullptr;
  std::unique_ptr<net::ControlLink> link_;
};

TEST_F(FieldLinkTest, WithEveryGuardItIsTheLinkItself) {
  make(RuntimeGuard::kNone);
  EXPECT_EQ(link_.get(), inner_);
  make(RuntimeGuard::kReceiveCheck);
  EXPECT_EQ(link_.get(), inner_);
  make(RuntimeGuard::kWholeMessages);
  EXPECT_NE(link_.get(), inner_);
}

// --- in parts ---

TEST_F(FieldLinkTest, TheLargestFrameGoesInPartsThatAreJoinedAgain) {
  make(RuntimeGuard::kWholeMessages);
  come({net::LinkConnected{kOld}});
  Frame frame(kLargest);
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::uint8_t>(i * 7 / 5);
  EXPECT_EQ(send(kOld, frame), net::LinkSend::kQueued);
  await_parts(4);
  ASSERT_EQ(inner_->sent.size(), 4U);
  Events parts;
  for (Frame& sent : inner_->sent) {
    EXPECT_LE(sent.size(), kLargest);
    parts.emplace_back(net::LinkFrame{"sender", std::move(sent)});
  }
  inner_->to_come = std::move(parts);
  const Events came = wait();
  ASSERT_EQ(came.size(), 1U);
  EXPECT_TRUE(std::get<net::LinkFrame>(came[0]).bytes == frame);
  EXPECT_EQ(std::get<net::LinkFrame>(came[0]).sender_key, "sender");
}

TEST_F(FieldLinkTest, PartsOfOneSenderThatInterleaveBecomeWhatNobodySent) {
  make(RuntimeGuard::kWholeMessages);
  EXPECT_THAT(come({part("p", true, "ab"), part("p", true, "12"), part("p", false, "c"),
                    part("p", false, "3")}),
              ElementsAre("frame ab12c", "frame 3"));
  EXPECT_THAT(come({part("p", true, "ab"), part("q", true, "12"), part("p", false, "c"),
                    part("q", false, "3")}),
              ElementsAre("frame abc", "frame 123"));
}

// Threads take turns; each of them keeps the order of its own parts, and none loses one.
TEST_F(FieldLinkTest, ACrowdLosesNoPart) {
  constexpr std::uint8_t kFrames = 200;
  make(RuntimeGuard::kWholeMessages);
  come({net::LinkConnected{kOld}});
  for (std::uint8_t i = 0; i < kFrames; ++i) send(kOld, {i, 1, i, 2, i, 3, i, 4});
  await_parts(4 * kFrames);
  std::map<int, std::vector<int>> by_frame;
  for (const Frame& sent : inner_->sent) {
    ASSERT_EQ(sent.size(), 3U);
    EXPECT_EQ(sent[0], sent[2] == 4 ? 0 : 1);
    by_frame[sent[1]].push_back(sent[2]);
  }
  EXPECT_EQ(by_frame.size(), kFrames);
  for (const auto& [frame, order] : by_frame) EXPECT_THAT(order, ElementsAre(1, 2, 3, 4));
}

TEST_F(FieldLinkTest, WhatIsNoPartOfAProvenSenderIsMalformed) {
  make(RuntimeGuard::kWholeMessages);
  wire::Frame whole;
  whole.session = SessionEpoch(3);
  whole.messages = {wire::Abort{}};
  EXPECT_THAT(come({part("", false, "x"), net::LinkFrame{"p", {}},
                    net::LinkFrame{"p", wire::encode(whole)}, part("p", false, "x")}),
              ElementsAre("malformed", "malformed", "malformed", "frame x"));
}

TEST_F(FieldLinkTest, PartsAreSentToWhoIsConnectedOnly) {
  make(RuntimeGuard::kWholeMessages);
  EXPECT_EQ(send(kOld), net::LinkSend::kNotConnected);
  EXPECT_THAT(come({net::LinkConnected{kOld}}), ElementsAre("up 7"));
  EXPECT_EQ(send(kOld), net::LinkSend::kQueued);
  EXPECT_THAT(come({net::LinkLost{kOld, net::LinkLost::Why::kClosed}}), ElementsAre("lost 7"));
  EXPECT_EQ(send(kOld), net::LinkSend::kNotConnected);
}

// --- with kept sockets ---

TEST_F(FieldLinkTest, ALostSocketIsKeptAndTakesEverything) {
  make(RuntimeGuard::kFreshSocket);
  ASSERT_TRUE(link_->dial(kOld, kAddress));
  ASSERT_EQ(inner_->dialled.size(), 1U);
  const PeerId socket = inner_->dialled[0];
  EXPECT_EQ(send(kOld), net::LinkSend::kNotConnected);
  EXPECT_THAT(come({net::LinkConnected{socket}}), ElementsAre("up 7"));
  EXPECT_THAT(come({net::LinkLost{socket, net::LinkLost::Why::kClosed}}), IsEmpty());
  inner_->answers = {net::LinkSend::kNotConnected, net::LinkSend::kQueueFull};
  EXPECT_EQ(send(kOld), net::LinkSend::kQueued);
  EXPECT_EQ(send(kOld), net::LinkSend::kQueueFull);
}

TEST_F(FieldLinkTest, WhoIsDialledAtTheSameEndpointGetsTheKeptSocket) {
  make(RuntimeGuard::kFreshSocket);
  ASSERT_TRUE(link_->dial(kOld, kAddress));
  const PeerId socket = inner_->dialled[0];
  come({net::LinkConnected{socket}});
  link_->hang_up(kOld);
  EXPECT_THAT(inner_->hung_up, IsEmpty());
  EXPECT_EQ(send(kOld), net::LinkSend::kNotConnected);
  ASSERT_TRUE(link_->dial(kNew, kSameEndpoint));
  EXPECT_EQ(inner_->dialled.size(), 1U);
  EXPECT_THAT(names(wait()), ElementsAre("up 8"));
  EXPECT_EQ(inner_->timeouts.back(), Duration::zero()) << "the news must not wait";
  EXPECT_EQ(send(kNew), net::LinkSend::kQueued);
  EXPECT_THAT(names(wait()), IsEmpty());
  EXPECT_EQ(inner_->timeouts.back(), kPatience);
  // Another endpoint is dialled as ever.
  ASSERT_TRUE(link_->dial(kOld, {"127.0.0.1:11", "key"}));
  EXPECT_EQ(inner_->dialled.size(), 2U);
}

TEST_F(FieldLinkTest, ADialThatNeverConnectedIsLostAsEver) {
  make(RuntimeGuard::kFreshSocket);
  ASSERT_TRUE(link_->dial(kOld, kAddress));
  EXPECT_THAT(come({net::LinkLost{inner_->dialled[0], net::LinkLost::Why::kRefused}}),
              ElementsAre("lost 7"));
  ASSERT_TRUE(link_->dial(kOld, kAddress));
  ASSERT_EQ(inner_->dialled.size(), 2U);
  link_->hang_up(kOld);
  EXPECT_THAT(inner_->hung_up, ElementsAre(inner_->dialled[1]));
}

// --- waiting for a full queue ---

TEST_F(FieldLinkTest, AFullQueueIsWaitedForAndNothingThatComesMeanwhileIsLost) {
  make(RuntimeGuard::kFullIsAValue);
  using enum net::LinkSend;
  inner_->answers = {kQueueFull, kQueueFull, kQueued};
  inner_->to_come = {net::LinkConnected{kOld}, net::LinkConnected{kNew}};
  EXPECT_EQ(send(kOld), kQueued);
  EXPECT_EQ(inner_->timeouts.size(), 2U);
  EXPECT_THAT(inner_->sent, ElementsAre(Frame{'x'}));
  EXPECT_THAT(names(wait(1)), ElementsAre("up 7"));
  EXPECT_THAT(names(wait(1)), ElementsAre("up 8"));
  EXPECT_THAT(come({part("p", false, "")}), ElementsAre(std::string("frame \0", 7)));
}

TEST_F(FieldLinkTest, WhoIsGoneIsNotWaitedFor) {
  make(RuntimeGuard::kFullIsAValue);
  inner_->answers = {net::LinkSend::kQueueFull, net::LinkSend::kNotConnected};
  EXPECT_EQ(send(kOld), net::LinkSend::kNotConnected);
}

}  // namespace
}  // namespace kvferry::lab
