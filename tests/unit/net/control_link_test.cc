#include "net/control_link.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <zmq.hpp>

#include "base/clock.h"
#include "net/endpoint.h"

namespace kvferry::net {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 10s;

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// A link and all that it has reported, in order.
struct Node {
  CurveKeys keys = CurveKeys::generate();
  std::set<std::string> allowed;
  std::unique_ptr<ControlLink> link;
  std::vector<LinkEvent> events;

  static std::unique_ptr<Node> make(ControlLinkConfig config = {}) {
    auto node = std::make_unique<Node>();
    config.max_peers = 16;
    config.keys = node->keys;
    auto opened = ControlLink::open(
        config, [raw = node.get()](const std::string& key) { return raw->allowed.contains(key); });
    if (!opened) {
      ADD_FAILURE() << opened.error().what;
      return nullptr;
    }
    node->link = std::move(*opened);
    return node;
  }

  PeerAddress address() const { return {link->endpoint(), keys.public_key}; }

  template <typename Event>
  std::vector<const Event*> all() const {
    std::vector<const Event*> found;
    for (const auto& event : events) {
      if (const auto* match = std::get_if<Event>(&event)) {
        found.push_back(match);
      }
    }
    return found;
  }

  std::vector<std::string> texts() const {
    std::vector<std::string> found;
    for (const auto* frame : all<LinkFrame>()) {
      found.emplace_back(frame->bytes.begin(), frame->bytes.end());
    }
    return found;
  }
};

// Runs the given nodes in turn until the condition holds.
template <typename Condition>
bool turn_until(std::initializer_list<Node*> nodes, Condition condition) {
  const Instant deadline = monotonic_now() + kPatience;
  while (!condition()) {
    if (monotonic_now() > deadline) {
      return false;
    }
    for (Node* node : nodes) {
      node->link->wait(2ms, -1, node->events);
    }
  }
  return true;
}

bool connect(Node& from, Node& to, PeerId peer) {
  to.allowed.insert(from.keys.public_key);
  const std::size_t before = from.all<LinkConnected>().size();
  EXPECT_TRUE(from.link->dial(peer, to.address()));
  return turn_until({&from, &to}, [&] { return from.all<LinkConnected>().size() > before; });
}

const LinkLost* wait_lost(Node& node, std::initializer_list<Node*> others = {}) {
  const Instant deadline = monotonic_now() + kPatience;
  while (node.all<LinkLost>().empty() && monotonic_now() < deadline) {
    node.link->wait(2ms, -1, node.events);
    for (Node* other : others) {
      other->link->wait(0ms, -1, other->events);
    }
  }
  return node.all<LinkLost>().empty() ? nullptr : node.all<LinkLost>().front();
}

// Sends one frame until it is seen at the other end: the proof that a link works.
bool passes(Node& from, Node& to, PeerId peer, const std::string& text) {
  EXPECT_EQ(from.link->send(peer, bytes_of(text), LinkPriority::kNormal), LinkSend::kQueued);
  return turn_until({&from, &to}, [&] {
    const auto texts = to.texts();
    return std::find(texts.begin(), texts.end(), text) != texts.end();
  });
}

// A raw DEALER as a faulty or foreign peer would use it.
struct RawPeer {
  zmq::context_t context{1};
  zmq::socket_t dealer{context, zmq::socket_type::dealer};

  RawPeer() { dealer.set(zmq::sockopt::linger, 0); }
  void use_curve(const CurveKeys& own, const std::string& server_key) {
    dealer.set(zmq::sockopt::curve_serverkey, server_key);
    dealer.set(zmq::sockopt::curve_publickey, own.public_key);
    dealer.set(zmq::sockopt::curve_secretkey, own.secret_key);
  }
  void send(std::initializer_list<std::string> parts) {
    std::size_t left = parts.size();
    for (const auto& part : parts) {
      const auto flags = --left > 0 ? zmq::send_flags::sndmore : zmq::send_flags::none;
      dealer.send(zmq::buffer(part), flags);
    }
  }
};

TEST(ControlLink, TalksBothWaysAndNamesTheSender) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  ASSERT_TRUE(connect(*b, *a, PeerId(7)));
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "from a"));
  EXPECT_TRUE(passes(*b, *a, PeerId(7), "from b"));
  EXPECT_EQ(b->all<LinkFrame>().front()->sender_key, a->keys.public_key);
  EXPECT_EQ(a->all<LinkFrame>().front()->sender_key, b->keys.public_key);
  EXPECT_EQ(a->all<LinkConnected>().front()->peer, PeerId(1));
}

TEST(ControlLink, CarriesLargeAndEmptyFramesInOrder) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  const std::string large(4U << 20, 'x');
  for (const std::string& text :
       {std::string("first"), large, std::string(), std::string("last")}) {
    ASSERT_EQ(a->link->send(PeerId(1), bytes_of(text), LinkPriority::kNormal), LinkSend::kQueued);
  }
  ASSERT_TRUE(turn_until({a.get(), b.get()}, [&] { return b->texts().size() == 4; }));
  EXPECT_EQ(b->texts(), (std::vector<std::string>{"first", large, "", "last"}));
  const std::vector<std::uint8_t> too_large((4U << 20) + 1);
  EXPECT_EQ(a->link->send(PeerId(1), too_large, LinkPriority::kNormal), LinkSend::kQueueFull);
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "still up"));
}

TEST(ControlLink, StrangerGetsNothing) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(a->link->dial(PeerId(1), b->address()));
  ASSERT_TRUE(turn_until({a.get(), b.get()}, [&] {
    return !b->all<LinkStranger>().empty() && !a->all<LinkLost>().empty();
  }));
  EXPECT_EQ(b->all<LinkStranger>().front()->public_key, a->keys.public_key);
  EXPECT_TRUE(a->all<LinkConnected>().empty());
  // The peer lives; it just does not know this key yet, so that this is no evidence against it.
  EXPECT_EQ(a->all<LinkLost>().front()->why, LinkLost::Why::kDenied);
  EXPECT_EQ(a->link->send(PeerId(1), bytes_of("x"), LinkPriority::kUrgent),
            LinkSend::kNotConnected);
  ASSERT_TRUE(connect(*a, *b, PeerId(2)));
  EXPECT_TRUE(passes(*a, *b, PeerId(2), "known now"));
  EXPECT_EQ(b->texts().size(), 1U);
}

TEST(ControlLink, PlainTextClientGetsNothingAndTheLinkLives) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  RawPeer raw;
  zmq_socket_monitor(raw.dealer.handle(), "inproc://raw", ZMQ_EVENT_DISCONNECTED);
  zmq::socket_t monitor(raw.context, zmq::socket_type::pair);
  monitor.set(zmq::sockopt::linger, 0);
  monitor.connect("inproc://raw");
  raw.dealer.connect("tcp://" + b->link->endpoint());
  raw.send({"hello"});
  bool closed = false;
  ASSERT_TRUE(turn_until({b.get()}, [&] {
    zmq::message_t event;
    closed = closed || monitor.recv(event, zmq::recv_flags::dontwait).has_value();
    return closed && !b->all<LinkBadHandshake>().empty();
  }));
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "x"));
  EXPECT_EQ(b->texts(), std::vector<std::string>{"x"});
  EXPECT_TRUE(b->all<LinkMalformed>().empty());
}

TEST(ControlLink, WrongServerKeyIsAFailedHandshake) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  b->allowed.insert(a->keys.public_key);
  const PeerAddress wrong{b->link->endpoint(), CurveKeys::generate().public_key};
  ASSERT_TRUE(a->link->dial(PeerId(1), wrong));
  const auto* lost = wait_lost(*a, {b.get()});
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->why, LinkLost::Why::kHandshakeFailed);
  EXPECT_TRUE(a->all<LinkConnected>().empty());
}

TEST(ControlLink, SilentListenerIsNoEvidence) {
  ControlLinkConfig config;
  config.handshake_timeout = 200ms;
  auto a = Node::make(config);
  ASSERT_TRUE(a);
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ASSERT_TRUE(a->link->dial(PeerId(1), {fmt::format("127.0.0.1:{}", ntohs(address.sin_port)),
                                        CurveKeys::generate().public_key}));
  const auto* lost = wait_lost(*a);
  ::close(listener);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->why, LinkLost::Why::kClosed);
}

TEST(ControlLink, RefusedPortThenRedial) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  const CurveKeys later = b->keys;
  const std::string endpoint = b->link->endpoint();
  b.reset();
  ASSERT_TRUE(a->link->dial(PeerId(1), {endpoint, later.public_key}));
  const auto* lost = wait_lost(*a);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->peer, PeerId(1));
  EXPECT_EQ(lost->why, LinkLost::Why::kRefused);
  ControlLinkConfig config;
  config.port = parse_endpoint(endpoint)->port;
  b = Node::make(config);
  ASSERT_TRUE(b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "hello"));
}

TEST(ControlLink, SuccessorGetsNothingOfThePeersOldLife) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  ASSERT_TRUE(passes(*a, *b, PeerId(1), "seen"));
  // The peer stops reading, so that messages pile up in every buffer on the way.
  const std::string old(60'000, 'o');
  while (a->link->send(PeerId(1), bytes_of(old), LinkPriority::kNormal) == LinkSend::kQueued) {
  }
  ControlLinkConfig config;
  config.port = parse_endpoint(b->link->endpoint())->port;
  b.reset();
  auto successor = Node::make(config);
  ASSERT_TRUE(successor);
  successor->allowed.insert(a->keys.public_key);
  const auto* lost = wait_lost(*a, {successor.get()});
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(a->link->send(PeerId(1), bytes_of("late"), LinkPriority::kUrgent),
            LinkSend::kNotConnected);
  ASSERT_TRUE(connect(*a, *successor, PeerId(2)));
  ASSERT_TRUE(passes(*a, *successor, PeerId(2), "new"));
  EXPECT_EQ(successor->texts(), std::vector<std::string>{"new"});
}

TEST(ControlLink, FullQueueIsAValueAndUrgentFramesOvertake) {
  ControlLinkConfig config;
  config.queue_max_bytes = 1U << 20;
  auto a = Node::make(config);
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  const std::string bulk(60'000, 'b');
  std::size_t queued = 0;
  while (a->link->send(PeerId(1), bytes_of(bulk), LinkPriority::kNormal) == LinkSend::kQueued) {
    ++queued;
    ASSERT_LT(queued, 10'000U);
  }
  // There is room for a small one, and it goes ahead of what waits.
  ASSERT_EQ(a->link->send(PeerId(1), bytes_of("urgent"), LinkPriority::kUrgent), LinkSend::kQueued);
  ASSERT_TRUE(turn_until({a.get(), b.get()}, [&] { return b->texts().size() == queued + 1; }));
  EXPECT_NE(b->texts().back(), "urgent");
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "after"));
}

TEST(ControlLink, MalformedMultipartIsReportedAndDropped) {
  auto b = Node::make();
  ASSERT_TRUE(b);
  const CurveKeys keys = CurveKeys::generate();
  b->allowed.insert(keys.public_key);
  RawPeer raw;
  raw.use_curve(keys, b->keys.public_key);
  raw.dealer.connect("tcp://" + b->link->endpoint());
  raw.send({"one", "two", "three"});
  raw.send({"good"});
  raw.send({"", "enveloped"});
  ASSERT_TRUE(turn_until(
      {b.get()}, [&] { return b->all<LinkMalformed>().size() == 2 && b->texts().size() == 1; }));
  EXPECT_EQ(b->texts().front(), "good");
  EXPECT_NE(b->all<LinkMalformed>().front()->what.find(keys.public_key), std::string::npos);
}

TEST(ControlLink, PeerThatTalksOnTheWrongSocketIsIgnored) {
  auto a = Node::make();
  ASSERT_TRUE(a);
  const CurveKeys keys = CurveKeys::generate();
  zmq::context_t context{1};
  zmq::socket_t router(context, zmq::socket_type::router);
  router.set(zmq::sockopt::linger, 0);
  router.set(zmq::sockopt::curve_server, true);
  router.set(zmq::sockopt::curve_secretkey, keys.secret_key);
  router.bind("tcp://127.0.0.1:*");
  const std::string endpoint = router.get(zmq::sockopt::last_endpoint).substr(6);
  ASSERT_TRUE(a->link->dial(PeerId(1), {endpoint, keys.public_key}));
  ASSERT_TRUE(turn_until({a.get()}, [&] { return !a->all<LinkConnected>().empty(); }));
  int received = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(a->link->send(PeerId(1), bytes_of("ping"), LinkPriority::kNormal), LinkSend::kQueued);
    ASSERT_TRUE(turn_until({a.get()}, [&] {
      zmq::message_t id;
      zmq::message_t body;
      if (!router.recv(id, zmq::recv_flags::dontwait)) {
        return false;
      }
      (void)router.recv(body);
      router.send(id, zmq::send_flags::sndmore | zmq::send_flags::dontwait);
      router.send(zmq::str_buffer("junk"), zmq::send_flags::dontwait);
      ++received;
      return true;
    }));
  }
  EXPECT_EQ(received, 50);
  EXPECT_TRUE(a->all<LinkFrame>().empty());
  EXPECT_TRUE(a->all<LinkLost>().empty());
}

TEST(ControlLink, HangUpAndRedialAreSilent) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  a->link->hang_up(PeerId(1));
  a->link->hang_up(PeerId(99));
  EXPECT_EQ(a->link->send(PeerId(1), bytes_of("x"), LinkPriority::kNormal),
            LinkSend::kNotConnected);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "x"));
  EXPECT_TRUE(a->all<LinkLost>().empty());
}

TEST(ControlLink, EventsBeyondTheLimitComeWithTheNextCall) {
  auto a = Node::make();
  auto b = Node::make();
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(a->link->send(PeerId(1), bytes_of(std::to_string(i)), LinkPriority::kNormal),
              LinkSend::kQueued);
  }
  b->events.clear();
  const Instant deadline = monotonic_now() + kPatience;
  while (b->texts().size() < 20 && monotonic_now() < deadline) {
    std::vector<LinkEvent> some;
    a->link->wait(0ms, -1, a->events);
    b->link->wait(2ms, -1, some, 3);
    EXPECT_LE(some.size(), 3U);
    std::move(some.begin(), some.end(), std::back_inserter(b->events));
  }
  ASSERT_EQ(b->texts().size(), 20U);
  EXPECT_EQ(b->texts().back(), "19");
}

TEST(ControlLink, WakesForTheDescriptor) {
  auto a = Node::make();
  ASSERT_TRUE(a);
  const int wake = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::thread waker([wake] { ::eventfd_write(wake, 1); });
  a->link->wait(-1s, wake, a->events);  // would wait for ever
  waker.join();
  eventfd_t value = 0;
  EXPECT_EQ(::eventfd_read(wake, &value), 0);
  ::close(wake);
}

TEST(ControlLink, WorksOverIpv6) {
  ControlLinkConfig config;
  config.host = "::1";
  const int probe = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool available = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(probe);
  if (!available) {
    GTEST_SKIP() << "no IPv6 loopback here";
  }
  auto a = Node::make();
  auto b = Node::make(config);
  ASSERT_TRUE(a && b);
  EXPECT_TRUE(b->link->endpoint().starts_with("[::1]:"));
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "six"));
  const PeerAddress gone = b->address();
  b.reset();
  a->events.clear();
  ASSERT_TRUE(a->link->dial(PeerId(1), gone));
  const auto* lost = wait_lost(*a);
  ASSERT_NE(lost, nullptr);
  EXPECT_EQ(lost->why, LinkLost::Why::kRefused);
}

TEST(ControlLink, PlainModeIsForLoopbackOnly) {
  ControlLinkConfig config;
  config.curve = false;
  config.host = "0.0.0.0";
  auto refused = ControlLink::open(config, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, FailureCode::kInvalidArgument);
  config.host = "localhost";
  auto a = Node::make(config);
  auto b = Node::make(config);
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(connect(*a, *b, PeerId(1)));
  EXPECT_TRUE(passes(*a, *b, PeerId(1), "plain"));
  EXPECT_EQ(b->all<LinkFrame>().front()->sender_key, "");
  EXPECT_FALSE(a->link->dial(PeerId(2), {"10.0.0.1:80", ""}));
}

TEST(ControlLink, RefusesBadSettingsAndAddresses) {
  ControlLinkConfig config;
  EXPECT_FALSE(ControlLink::open(config, nullptr));  // no keys
  config.keys = CurveKeys::generate();
  config.max_peers = 0;
  EXPECT_FALSE(ControlLink::open(config, nullptr));
  config.max_peers = 16'000;
  const auto too_many = ControlLink::open(config, nullptr);
  if (!too_many) {
    EXPECT_NE(too_many.error().what.find("ulimit"), std::string::npos);
  }
  auto a = Node::make();
  ASSERT_TRUE(a);
  for (const char* endpoint :
       {"", "nonsense", "127.0.0.1:0", "tcp://127.0.0.1:80", "127.0.0.1:1;x"}) {
    EXPECT_FALSE(a->link->dial(PeerId(1), {endpoint, a->keys.public_key})) << endpoint;
  }
  EXPECT_FALSE(a->link->dial(PeerId(1), {"127.0.0.1:80", "short"}));
  EXPECT_FALSE(a->link->dial(PeerId(1), {"127.0.0.1:80", std::string(40, '\x80')}));
  ControlLinkConfig taken;
  taken.keys = a->keys;
  taken.max_peers = 4;
  taken.port = parse_endpoint(a->link->endpoint())->port;
  const auto in_use = ControlLink::open(taken, nullptr);
  ASSERT_FALSE(in_use);
  EXPECT_NE(in_use.error().what.find(a->link->endpoint()), std::string::npos);
}

TEST(ControlLink, PeerLimitIsAValue) {
  auto a = Node::make();
  ASSERT_TRUE(a);
  for (std::uint64_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(a->link->dial(PeerId(i), a->address()));
  }
  const auto over = a->link->dial(PeerId(16), a->address());
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, FailureCode::kTableFull);
  EXPECT_TRUE(a->link->dial(PeerId(3), a->address()));  // a redial is not one more
}

}  // namespace
}  // namespace kvferry::net
