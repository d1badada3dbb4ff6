// PUSH sockets to endpoints, against real PULL sockets of this process.
#include "dialect/sglang/push_endpoints.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <functional>

#include "../net/raw_client.h"
#include "base/clock.h"
#include "net/endpoint.h"
#include "sockets.h"

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PushEndpointsTest : public ::testing::Test {
 protected:
  void make(const PushEndpointsConfig& config = {}) {
    endpoints_ = std::move(*PushEndpoints::make(context_, config));
  }
  void serve(Instant now = monotonic_now()) {
    endpoints_->serve(now);
    for (EndpointEvent& event : endpoints_->take_events()) {
      if (const auto* up = std::get_if<EndpointUp>(&event)) {
        told_.push_back(fmt::format("up {}", up->endpoint.port));
      } else {
        lost_ = std::get<EndpointLost>(event);
        told_.push_back(fmt::format("lost {} with {}", lost_.endpoint.port, lost_.messages));
      }
    }
  }
  // Serves as the link does: when the descriptor says so, or a deadline has come.
  [[nodiscard]] bool await(const std::function<bool()>& condition) {
    const Instant end = monotonic_now() + kPatience;
    while (!condition()) {
      if (monotonic_now() > end) {
        return false;
      }
      const auto deadline = endpoints_->next_deadline();
      const bool due = deadline && *deadline <= monotonic_now();
      pollfd entry{endpoints_->descriptor(), POLLIN, 0};
      if (due || ::poll(&entry, 1, 5) > 0) {
        serve();
      }
    }
    return true;
  }
  [[nodiscard]] bool await_told(std::size_t count) {
    return await([&] { return told_.size() >= count; });
  }
  static std::uint16_t port_of(const net::RawListener& listener) {
    return net::parse_endpoint(listener.address())->port;
  }
  static Frames words(std::initializer_list<std::string_view> all) {
    Frames frames;
    for (const std::string_view word : all) {
      frames.emplace_back(word.begin(), word.end());
    }
    return frames;
  }
  void send(std::uint16_t port, std::initializer_list<std::string_view> all) {
    endpoints_->send({"127.0.0.1", port}, words(all), monotonic_now());
  }

  zmq::context_t context_{1};
  std::unique_ptr<PushEndpoints> endpoints_;
  std::vector<std::string> told_;
  EndpointLost lost_;
};

TEST_F(PushEndpointsTest, MessagesArriveWholeAndInOrder) {
  make();
  PullSocket pull(context_);
  for (int i = 0; i < 200; ++i) {
    send(pull.port(), {"a", "", fmt::format("{}", i)});
  }
  for (int i = 0; i < 200; ++i) {
    std::vector<std::string> got;
    ASSERT_TRUE(await([&] { return pull.receive(got); })) << i;
    EXPECT_THAT(got, ElementsAre("a", "", fmt::format("{}", i)));
  }
  EXPECT_THAT(told_, ElementsAre(fmt::format("up {}", pull.port())));
}

// The point of one connection for each socket: what was meant for nobody reaches nobody.
TEST_F(PushEndpointsTest, WhatWaitedForARefusedPortIsLostAndNeverReachesItsNextOwner) {
  make();
  const std::uint16_t port = free_port();
  send(port, {"old"});
  send(port, {"older"});
  ASSERT_TRUE(await_told(1));
  EXPECT_THAT(told_, ElementsAre(fmt::format("lost {} with 2", port)));
  EXPECT_THAT(lost_.why, HasSubstr("can't be reached"));
  EXPECT_EQ(endpoints_->size(), 0U);
  PullSocket pull(context_, port);
  send(port, {"new"});
  std::vector<std::string> got;
  ASSERT_TRUE(await([&] { return pull.receive(got); }));
  EXPECT_THAT(got, ElementsAre("new"));
}

TEST_F(PushEndpointsTest, AHeldEndpointThatEndsIsToldAlthoughNothingIsSaid) {
  make();
  auto pull = std::make_unique<PullSocket>(context_);
  const std::uint16_t port = pull->port();
  endpoints_->hold({"127.0.0.1", port}, monotonic_now());
  ASSERT_TRUE(await_told(1));
  pull.reset();
  ASSERT_TRUE(await_told(2));
  EXPECT_THAT(told_, ElementsAre(fmt::format("up {}", port), fmt::format("lost {} with 0", port)));
  EXPECT_EQ(endpoints_->size(), 0U);
}

// Such an endpoint takes connections, and never says a word.
TEST_F(PushEndpointsTest, AnEndpointThatTakesNothingIsLostWithItsQueue) {
  PushEndpointsConfig config;
  config.queue_max_messages = 8;
  make(config);
  net::RawListener stuck;
  for (int i = 0; i < 8; ++i) {
    send(port_of(stuck), {"x"});
  }
  serve();
  EXPECT_THAT(told_, IsEmpty());
  send(port_of(stuck), {"one too many"});
  serve();
  EXPECT_THAT(told_, ElementsAre(fmt::format("lost {} with 9", port_of(stuck))));
}

TEST_F(PushEndpointsTest, AQueueIsLimitedInBytesToo) {
  PushEndpointsConfig config;
  config.queue_max_bytes = 10;
  make(config);
  net::RawListener stuck;
  send(port_of(stuck), {"0123456789"});
  send(port_of(stuck), {"0"});
  serve();
  EXPECT_THAT(told_, ElementsAre(fmt::format("lost {} with 2", port_of(stuck))));
}

TEST_F(PushEndpointsTest, AHandshakeThatNeverEndsIsGivenUp) {
  PushEndpointsConfig config;
  config.handshake_timeout = milliseconds(50);
  make(config);
  net::RawListener stuck;
  send(port_of(stuck), {"x"});
  ASSERT_TRUE(await_told(1));
  EXPECT_THAT(told_, ElementsAre(fmt::format("lost {} with 1", port_of(stuck))));
}

TEST_F(PushEndpointsTest, NamesAreNotLookedUp) {
  make();
  endpoints_->send({"localhost", 80}, words({"x"}), monotonic_now());
  serve();
  EXPECT_THAT(lost_.why, HasSubstr("not numeric"));
  endpoints_->send({"127.0.0.1", 0}, words({"x"}), monotonic_now());
  serve();
  EXPECT_EQ(told_.size(), 2U);
  EXPECT_EQ(endpoints_->size(), 0U);
}

TEST_F(PushEndpointsTest, AtTheLimitAnIdleEndpointGivesWayAndAHeldOneDoesNot) {
  PushEndpointsConfig config;
  config.max_endpoints = 2;
  make(config);
  PullSocket first(context_);
  PullSocket second(context_);
  PullSocket third(context_);
  endpoints_->hold({"127.0.0.1", first.port()}, monotonic_now());
  send(second.port(), {"x"});
  std::vector<std::string> got;
  ASSERT_TRUE(await([&] { return second.receive(got); }));
  ASSERT_TRUE(await_told(2));
  send(third.port(), {"x"});
  serve();
  EXPECT_EQ(told_.back(), fmt::format("lost {} with 0", third.port()));
  EXPECT_THAT(lost_.why, HasSubstr("2 endpoints are open"));
  const Instant later = monotonic_now() + std::chrono::seconds(2);
  endpoints_->send({"127.0.0.1", third.port()}, words({"y"}), later);
  ASSERT_TRUE(await([&] { return third.receive(got); }));
  EXPECT_EQ(endpoints_->size(), 2U);
  first.close();
  const std::size_t before = told_.size();
  ASSERT_TRUE(await_told(before + 1)) << "the held one was there still";
}

TEST_F(PushEndpointsTest, AnIdleEndpointIsClosedWithoutAWord) {
  make();
  PullSocket pull(context_);
  PullSocket held(context_);
  send(pull.port(), {"x"});
  endpoints_->hold({"127.0.0.1", held.port()}, monotonic_now());
  std::vector<std::string> got;
  ASSERT_TRUE(await([&] { return pull.receive(got); }));
  ASSERT_TRUE(await_told(2));
  serve(monotonic_now() + std::chrono::seconds(61));
  EXPECT_EQ(endpoints_->size(), 1U);
  EXPECT_EQ(told_.size(), 2U);
  endpoints_->leave({"127.0.0.1", held.port()});
  EXPECT_EQ(endpoints_->size(), 0U);
}

}  // namespace
}  // namespace kvferry::sglang
