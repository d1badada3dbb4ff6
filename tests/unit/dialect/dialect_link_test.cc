// The link around a translator that only remembers, with another link behind it that does the same.
#include "dialect/sglang/dialect_link.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>

#include "base/clock.h"
#include "sockets.h"
#include "wire/codec.h"

namespace kvferry::sglang {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr PeerId kVirtual{7};
constexpr PeerId kReal{8};

class FakeTranslator final : public Translator {
 public:
  void handle(const Message& message) override {
    log.push_back(std::string(kind_name(message)));
    if (on_message) {
      on_message();
    }
  }
  void handle_endpoint_up(const RankEndpoint& endpoint) override {
    log.push_back(fmt::format("up {}", endpoint.port));
  }
  void handle_endpoint_lost(const RankEndpoint& endpoint) override {
    log.push_back(fmt::format("lost {}", endpoint.port));
    if (on_lost) {
      on_lost();
    }
  }
  bool owns(const PeerAddress& address) const override { return address.public_key == "virtual"; }
  bool owns(PeerId peer) const override { return peer == kVirtual; }
  void handle_dial(PeerId peer, const PeerAddress&) override {
    log.push_back("dial");
    outputs.emplace_back(VirtualPeerUp{peer});
  }
  void handle_hang_up(PeerId peer) override {
    log.push_back("hang up");
    outputs.emplace_back(VirtualPeerDown{peer});
  }
  void handle_frame(PeerId, const wire::Frame& frame) override {
    log.push_back(fmt::format("frame {}", frame.sequence));
  }
  void advance(Instant now) override {
    if (deadline && *deadline <= now) {
      deadline.reset();
      log.push_back("advanced");
    }
  }
  std::optional<Instant> next_deadline() const override { return deadline; }
  std::vector<TranslatorOutput> take_outputs() override { return std::exchange(outputs, {}); }

  std::vector<std::string> log;
  std::vector<TranslatorOutput> outputs;
  std::optional<Instant> deadline;
  std::function<void()> on_message;
  std::function<void()> on_lost;
};

// Sleeps as the real one does, and always has an event to give while it is told to.
class FakeLink final : public net::ControlLink {
 public:
  std::string endpoint() const override { return "inner:1"; }
  Status dial(PeerId, const PeerAddress&) override {
    log.push_back("dial");
    return {};
  }
  void hang_up(PeerId) override { log.push_back("hang up"); }
  net::LinkSend send(PeerId, std::vector<std::uint8_t>, net::LinkPriority) override {
    log.push_back("send");
    return net::LinkSend::kQueueFull;
  }
  void wait(Duration timeout, int wake_fd, std::vector<net::LinkEvent>& events,
            std::size_t max_events) override {
    pollfd entry{wake_fd, POLLIN, 0};
    slept = timeout;
    const std::int64_t ms = timeout < Duration::zero() ? -1 : timeout / milliseconds(1);
    woken = ::poll(&entry, 1, busy ? 0 : static_cast<int>(ms)) > 0;
    for (std::size_t i = 0; busy && i < max_events; ++i) {
      events.emplace_back(net::LinkStranger{"inner"});
    }
  }
  std::vector<std::string> log;
  bool busy = false;
  bool woken = false;
  Duration slept{};  // at most so long, the last time
};

class DialectLinkTest : public ::testing::Test {
 protected:
  DialectLinkTest() {
    DialectLink::Parts parts;
    parts.context = std::make_unique<zmq::context_t>(1);
    parts.listener = std::move(*PullListener::bind(*parts.context, {}));
    parts.endpoints = std::move(*PushEndpoints::make(*parts.context, {}));
    auto translator = std::make_unique<FakeTranslator>();
    translator_ = translator.get();
    parts.translator = std::move(translator);
    port_ = parts.listener->port();
    link_ = std::move(*DialectLink::make(std::move(parts), {}, {}));
    auto inner = std::make_unique<FakeLink>();
    inner_ = inner.get();
    link_->wrap(std::move(inner));
    wait(Duration::zero());
  }

  void wait(Duration timeout, std::size_t max_events = 64, int wake_fd = -1) {
    events_.clear();
    link_->wait(timeout, wake_fd, events_, max_events);
  }
  // Waits as the driver does, for ever at a time: whatever comes has to wake it.
  [[nodiscard]] bool await(const std::function<bool()>& condition) {
    const Instant end = monotonic_now() + kPatience;
    while (!condition()) {
      if (monotonic_now() > end) {
        return false;
      }
      wait(Duration(-1));
    }
    return true;
  }
  double counter(std::string_view name, std::string_view labels = {}) const {
    for (const net::LinkCounter& each : link_->counters()) {
      if (each.name == name && each.labels == labels) {
        return static_cast<double>(each.value);
      }
    }
    return 0;
  }

  zmq::context_t peers_{1};
  std::unique_ptr<DialectLink> link_;
  FakeTranslator* translator_ = nullptr;
  FakeLink* inner_ = nullptr;
  std::uint16_t port_ = 0;
  std::vector<net::LinkEvent> events_;
};

TEST_F(DialectLinkTest, WhatIsNotVirtualPasses) {
  EXPECT_EQ(link_->endpoint(), "inner:1");
  EXPECT_TRUE(link_->dial(kReal, {"h:1", "key"}));
  link_->hang_up(kReal);
  EXPECT_EQ(link_->send(kReal, {1, 2}, net::LinkPriority::kNormal), net::LinkSend::kQueueFull);
  EXPECT_THAT(inner_->log, ElementsAre("dial", "hang up", "send"));
  EXPECT_THAT(translator_->log, IsEmpty());
}

TEST_F(DialectLinkTest, WhatIsVirtualEndsInTheTranslatorAndComesBackInOrder) {
  ASSERT_TRUE(link_->dial(kVirtual, {"h:1", "virtual"}));
  wire::Frame frame;
  frame.sequence = 5;
  frame.messages.emplace_back(wire::Heartbeat{});
  EXPECT_EQ(link_->send(kVirtual, wire::encode(frame), net::LinkPriority::kUrgent),
            net::LinkSend::kQueued);
  translator_->outputs.emplace_back(VirtualFrame{"virtual", frame});
  link_->hang_up(kVirtual);
  EXPECT_THAT(translator_->log, ElementsAre("dial", "frame 5", "hang up"));
  EXPECT_THAT(inner_->log, IsEmpty());
  wait(std::chrono::hours(1));
  ASSERT_EQ(events_.size(), 3U);
  EXPECT_EQ(std::get<net::LinkConnected>(events_[0]).peer, kVirtual);
  const auto& came = std::get<net::LinkFrame>(events_[1]);
  EXPECT_EQ(came.sender_key, "virtual");
  EXPECT_EQ(wire::decode(came.bytes).value().sequence, 5U);
  EXPECT_EQ(std::get<net::LinkLost>(events_[2]).peer, kVirtual);
  EXPECT_EQ(std::get<net::LinkLost>(events_[2]).why, net::LinkLost::Why::kRefused);
}

TEST_F(DialectLinkTest, AMessageOfAPeerWakesASleeper) {
  PushSocket peer(peers_, port_);
  for (std::uint64_t i = 0; i < 1'000; ++i) {
    peer.send(encode(Flavour::kMooncake, AbortRoom{RoomId(1), std::nullopt, std::nullopt}));
    ASSERT_TRUE(await([&] { return translator_->log.size() == i + 1; })) << i;
  }
  EXPECT_THAT(translator_->log, Contains("abort").Times(1'000));
}

// A descriptor says once that messages came, so what a full turn has left is not waited for.
TEST_F(DialectLinkTest, WhatATurnHasLeftIsNotSleptOn) {
  constexpr std::size_t kTurn = 64;
  std::vector<std::unique_ptr<PushSocket>> peers;
  for (int i = 0; i < 16; ++i) {
    peers.push_back(std::make_unique<PushSocket>(peers_, port_));
  }
  const auto count = [&] { return translator_->log.size(); };
  std::size_t sent = 0;
  bool turn_was_full = false;
  const Instant end = monotonic_now() + kPatience;
  while (!turn_was_full && monotonic_now() < end) {
    for (auto& peer : peers) {
      for (int i = 0; i < 16; ++i, ++sent) {
        peer->send(encode(Flavour::kMooncake, AbortRoom{RoomId(1), std::nullopt, std::nullopt}));
      }
    }
    while (count() < sent && !turn_was_full && monotonic_now() < end) {
      const std::size_t before = count();
      wait(Duration(-1));
      turn_was_full = count() - before == kTurn;
    }
  }
  ASSERT_TRUE(turn_was_full);
  wait(Duration(-1));
  EXPECT_EQ(inner_->slept, Duration::zero());
}

TEST_F(DialectLinkTest, TheCallersOwnWakeUpIsHeard) {
  const int wake = ::eventfd(1, EFD_CLOEXEC);
  wait(std::chrono::hours(1), 64, wake);
  EXPECT_TRUE(inner_->woken);
  wait(Duration::zero(), 64, -1);
  EXPECT_FALSE(inner_->woken) << "it was not passed";
  ::close(wake);
}

TEST_F(DialectLinkTest, TheTranslatorsDeadlineEndsTheSleep) {
  translator_->deadline = monotonic_now() + milliseconds(20);
  wait(Duration(-1));
  EXPECT_LE(inner_->slept, milliseconds(20));
  EXPECT_TRUE(await([&] { return !translator_->log.empty(); }));
  EXPECT_THAT(translator_->log, ElementsAre("advanced"));
}

TEST_F(DialectLinkTest, MalformedMessagesAreCountedByReasonAndDropped) {
  PushSocket peer(peers_, port_);
  peer.send({"what", "is", "this"});
  peer.send({"ABORT", "x", "127.0.0.1", "1"});
  peer.send(encode(Flavour::kMooncake, AbortRoom{RoomId(1), std::nullopt, std::nullopt}));
  ASSERT_TRUE(await([&] { return translator_->log.size() == 1; }));
  EXPECT_THAT(translator_->log, ElementsAre("abort"));
  EXPECT_EQ(counter("sglang_malformed_messages", R"(reason="foreign")"), 1);
  EXPECT_EQ(counter("sglang_malformed_messages", R"(reason="not-a-number")"), 1);
  EXPECT_EQ(link_->counted(), 2U);
}

TEST_F(DialectLinkTest, WhatIsSaidToAnEndpointArrivesAndItsLossIsTold) {
  auto pull = std::make_unique<PullSocket>(peers_);
  const RankEndpoint endpoint{"127.0.0.1", pull->port()};
  translator_->outputs.emplace_back(
      ToEndpoint{endpoint, RoomStatus{RoomId(3), KvPoll::kSuccess, 2, {}}});
  translator_->outputs.emplace_back(NotDone{"sglang_something", "something was not done"});
  std::vector<std::string> got;
  ASSERT_TRUE(await([&] { return pull->receive(got); }));
  EXPECT_THAT(got, ElementsAre("3", "4", "2"));
  EXPECT_EQ(counter("sglang_something"), 1);
  pull.reset();
  ASSERT_TRUE(await([&] { return translator_->log.size() == 2; }));
  EXPECT_THAT(translator_->log, ElementsAre(fmt::format("up {}", endpoint.port),
                                            fmt::format("lost {}", endpoint.port)));
  EXPECT_EQ(counter("sglang_endpoints_lost"), 1);
}

TEST_F(DialectLinkTest, AnEndpointThatIsLeftIsNotTold) {
  PullSocket pull(peers_);
  const RankEndpoint endpoint{"127.0.0.1", pull.port()};
  translator_->outputs.emplace_back(HoldEndpoint{endpoint});
  ASSERT_TRUE(await([&] { return !translator_->log.empty(); }));
  translator_->outputs.emplace_back(LeaveEndpoint{endpoint});
  wait(Duration::zero());
  pull.close();
  wait(milliseconds(50));
  EXPECT_THAT(translator_->log, ElementsAre(fmt::format("up {}", endpoint.port)));
}

// A translator that answers each loss with another message to the same place.
TEST_F(DialectLinkTest, AnEndpointThatIsLostAgainAndAgainKeepsNobodyWaiting) {
  const ToEndpoint nowhere{{"name", 1}, AbortRoom{RoomId(1), std::nullopt, std::nullopt}};
  translator_->on_lost = [&] { translator_->outputs.emplace_back(nowhere); };
  translator_->outputs.emplace_back(nowhere);
  for (int i = 0; i < 5; ++i) {
    wait(Duration::zero());
  }
  EXPECT_THAT(translator_->log,
              ::testing::SizeIs(::testing::AllOf(::testing::Ge(3), ::testing::Le(5))));
}

// A prefill rank hears decode ranks of both and answers each in its own.
TEST_F(DialectLinkTest, MessagesOfBothFlavoursAreReadAndWritten) {
  PushSocket peer(peers_, port_);
  for (const Flavour flavour : {Flavour::kNixl, Flavour::kMooncake}) {
    RoomTarget room{RoomId(3), {"127.0.0.1", 1}, {}, {}, 1, 0};
    peer.send(encode(flavour, flavour == Flavour::kNixl
                                  ? Message(NixlMetadata{room, "agent", 0, false})
                                  : Message(MooncakeMetadata{room, "127.0.0.1:1", 0, {}})));
    PullSocket pull(peers_);
    translator_->outputs.emplace_back(ToEndpoint{
        {"127.0.0.1", pull.port()}, RoomStatus{RoomId(3), KvPoll::kFailed, 2, "why"}, flavour});
    std::vector<std::string> got;
    ASSERT_TRUE(await([&] { return pull.receive(got); }));
    EXPECT_EQ(got, flavour == Flavour::kNixl
                       ? std::vector<std::string>({"KV_STATUS", "3", "0", "2", "why"})
                       : std::vector<std::string>({"3", "0", "2"}));
  }
  ASSERT_TRUE(
      await([&] { return std::ranges::count(translator_->log, "mooncake-metadata") == 1; }));
  EXPECT_THAT(translator_->log, Contains("nixl-metadata"));
}

TEST_F(DialectLinkTest, EventsBeyondTheLimitComeWithTheNextCallsAndBothSidesAreHeard) {
  inner_->busy = true;
  for (std::uint64_t i = 0; i < 10; ++i) {
    wire::Frame frame;
    frame.sequence = i;
    frame.messages.emplace_back(wire::Heartbeat{});
    translator_->outputs.emplace_back(VirtualFrame{"virtual", frame});
  }
  std::size_t ours = 0;
  std::size_t inners = 0;
  for (int i = 0; i < 8 && ours < 10; ++i) {
    wait(Duration::zero(), 4);
    EXPECT_LE(events_.size(), 4U);
    for (const net::LinkEvent& event : events_) {
      if (const auto* frame = std::get_if<net::LinkFrame>(&event)) {
        EXPECT_EQ(wire::decode(frame->bytes).value().sequence, ours);
        ++ours;
      } else {
        ++inners;
      }
    }
  }
  EXPECT_EQ(ours, 10U);
  EXPECT_GE(inners, 8U);
}

}  // namespace
}  // namespace kvferry::sglang
