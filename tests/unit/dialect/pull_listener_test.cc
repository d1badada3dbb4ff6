// The listener against real PUSH sockets of this process, and against clients that speak ZeroMQ's
// protocol by hand and badly.
#include "dialect/sglang/pull_listener.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <functional>

#include "../net/raw_client.h"
#include "base/clock.h"
#include "sockets.h"

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;

// What a PUSH socket says by ZMTP 3.0 before its first frame.
std::string greeting() {
  std::string text("\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0NULL", 16);
  text.resize(64, '\0');
  std::string body("\x05READY\x0BSocket-Type\0\0\0\x04PUSH", 26);
  return text + '\x04' + static_cast<char>(body.size()) + body;
}

// A frame that another one follows.
std::string unfinished_frame(std::size_t bytes) {
  std::string frame("\x03", 1);
  for (int shift = 56; shift >= 0; shift -= 8) {
    frame += static_cast<char>(bytes >> shift);
  }
  return frame + std::string(bytes, 'x');
}

class PullListenerTest : public ::testing::Test {
 protected:
  void bind(const PullListenerConfig& config = {}) {
    listener_ = std::move(*PullListener::bind(context_, config));
  }
  std::string address() const { return fmt::format("127.0.0.1:{}", listener_->port()); }

  // As the link does it: until nothing is left, then what else is due.
  void turn() {
    while (std::optional<Frames> frames = listener_->receive()) {
      got_.emplace_back(
          frames->empty() ? "" : std::string(frames->back().begin(), frames->back().end()));
      frame_counts_.push_back(frames->size());
    }
    listener_->serve(monotonic_now());
  }
  [[nodiscard]] bool await(const std::function<bool()>& condition) {
    const Instant end = monotonic_now() + kPatience;
    while (!condition()) {
      if (monotonic_now() > end) {
        return false;
      }
      pollfd entry{listener_->descriptor(), POLLIN, 0};
      ::poll(&entry, 1, 5);
      turn();
    }
    return true;
  }

  zmq::context_t context_{1};
  std::unique_ptr<PullListener> listener_;
  std::vector<std::string> got_;
  std::vector<std::size_t> frame_counts_;
};

TEST_F(PullListenerTest, MessagesComeWhole) {
  bind();
  PushSocket peer(context_, listener_->port());
  for (int i = 0; i < 300; ++i) {
    peer.send({"a", "", fmt::format("{}", i)});
  }
  ASSERT_TRUE(await([&] { return got_.size() == 300; }));
  EXPECT_EQ(got_.back(), "299");
  EXPECT_EQ(frame_counts_.back(), 3U);
}

// The attack that the listener is there for. The other peer's connection goes on, with all that it
// said meanwhile.
TEST_F(PullListenerTest, AMessageThatNeverEndsIsCutAndNobodyElseNoticesIt) {
  PullListenerConfig config;
  config.max_unfinished_bytes = 1U << 20;
  config.look_interval = milliseconds(5);
  bind(config);
  PushSocket peer(context_, listener_->port());
  peer.send({"before"});
  ASSERT_TRUE(await([&] { return got_.size() == 1; }));

  net::RawClient stranger(address());
  ASSERT_TRUE(stranger.send(greeting()));
  const std::string frame = unfinished_frame(256U << 10);
  bool sends = true;
  std::size_t sent = 0;
  ASSERT_TRUE(await([&] {
    sends = sends && stranger.send(frame);
    sent += frame.size();
    peer.send({"meanwhile"});
    return !sends;
  }));
  EXPECT_EQ(listener_->cut_unfinished(), 1U);
  EXPECT_GT(sent, config.max_unfinished_bytes);
  EXPECT_LT(sent, config.max_unfinished_total_bytes / 4) << "it was not the limit of all together";
  EXPECT_EQ(listener_->connections(), 1U);
  peer.send({"after"});
  ASSERT_TRUE(await([&] { return got_.back() == "after"; }));
  EXPECT_EQ(listener_->connections(), 1U) << "the peer had to connect again";
}

// The control of the test above: long and many is no reason, and neither is slow.
TEST_F(PullListenerTest, WhatIsWholeIsNotCounted) {
  PullListenerConfig config;
  config.max_unfinished_bytes = 1U << 20;
  config.look_interval = milliseconds(1);
  bind(config);
  PushSocket peer(context_, listener_->port());
  const std::string half(512U << 10, 'x');
  for (std::size_t i = 0; i < 40; ++i) {
    peer.send({half, "end"});
    ASSERT_TRUE(await([&] { return got_.size() == i + 1; }));
  }
  net::RawClient slow(address());
  ASSERT_TRUE(slow.send(greeting()));
  ASSERT_TRUE(slow.send(unfinished_frame(900U << 10)));
  for (int i = 0; i < 20; ++i) {
    peer.send({"on"});
    ASSERT_TRUE(await([&] { return got_.size() == 41U + static_cast<std::size_t>(i); }));
  }
  EXPECT_EQ(listener_->cut_unfinished(), 0U);
  EXPECT_EQ(listener_->connections(), 2U);
}

// While the link is kept from reading, whole messages wait; as many as libzmq may hold are no
// reason either.
TEST_F(PullListenerTest, WhatWaitsToBeReadIsNotCounted) {
  PullListenerConfig config;
  config.max_unfinished_bytes = 64U << 10;
  config.limits.max_message_bytes = 64U << 10;
  config.look_interval = milliseconds(1);
  bind(config);
  PushSocket peer(context_, listener_->port());
  const std::string text(32U << 10, 'x');
  for (int i = 0; i < 16; ++i) {
    peer.send({text});
  }
  const Instant end = monotonic_now() + milliseconds(200);
  while (monotonic_now() < end) {
    pollfd none{-1, 0, 0};
    ::poll(&none, 1, 2);
    listener_->serve(monotonic_now());
  }
  EXPECT_EQ(listener_->cut_unfinished(), 0U);
  EXPECT_TRUE(await([&] { return got_.size() == 16; }));
}

TEST_F(PullListenerTest, ManyStrangersTogetherAreHeldToALimitToo) {
  PullListenerConfig config;
  config.max_unfinished_total_bytes = 2U << 20;
  config.look_interval = milliseconds(5);
  bind(config);
  std::vector<std::unique_ptr<net::RawClient>> strangers;
  for (int i = 0; i < 5; ++i) {
    strangers.push_back(std::make_unique<net::RawClient>(address()));
    ASSERT_TRUE(strangers.back()->send(greeting()));
    ASSERT_TRUE(strangers.back()->send(unfinished_frame(600U << 10)));
  }
  ASSERT_TRUE(await([&] { return listener_->cut_unfinished() >= 2; }));
  ASSERT_TRUE(await([&] { return listener_->connections() == 3; }));
  EXPECT_EQ(listener_->cut_unfinished(), 2U);
}

TEST_F(PullListenerTest, SurplusConnectionsAreCut) {
  PullListenerConfig config;
  config.max_connections = 2;
  bind(config);
  net::RawClient first(address());
  net::RawClient second(address());
  ASSERT_TRUE(await([&] { return listener_->connections() == 2; }));
  net::RawClient third(address());
  ASSERT_TRUE(await([&] { return listener_->cut_surplus() == 1; }));
  EXPECT_TRUE(third.at_end());
  ASSERT_TRUE(await([&] { return listener_->connections() == 2; }));
}

TEST_F(PullListenerTest, OfAMessageBeyondTheLimitsComesAsMuchAsShowsIt) {
  PullListenerConfig config;
  config.limits.max_frames = 4;
  bind(config);
  PushSocket peer(context_, listener_->port());
  peer.send(std::vector<std::string>(1'000, "x"));
  peer.send({"next"});
  ASSERT_TRUE(await([&] { return got_.size() == 2; }));
  EXPECT_EQ(frame_counts_[0], 5U);
  EXPECT_EQ(got_[1], "next");
}

TEST_F(PullListenerTest, AFrameBeyondTheLimitEndsItsConnection) {
  PullListenerConfig config;
  config.limits.max_frame_bytes = 1'000;
  bind(config);
  net::RawClient stranger(address());
  ASSERT_TRUE(stranger.send(greeting()));
  ASSERT_TRUE(await([&] { return listener_->connections() == 1; }));
  stranger.send(unfinished_frame(1'001));
  EXPECT_TRUE(await([&] { return listener_->connections() == 0; }));
  EXPECT_EQ(listener_->cut_unfinished(), 0U);
}

TEST_F(PullListenerTest, APortThatIsTakenAndANameThatIsNoAddressAreRefused) {
  bind();
  PullListenerConfig config;
  config.port = listener_->port();
  const auto taken = PullListener::bind(context_, config);
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().what, HasSubstr(fmt::format("127.0.0.1:{}", config.port)));
  config.host = "localhost";
  EXPECT_FALSE(PullListener::bind(context_, config));
}

}  // namespace
}  // namespace kvferry::sglang
