// Each fault of the relay, seen from the two sockets that it joins.
#include "relay.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <span>

namespace kvferry::support {
namespace {

namespace tcp = data_plane::tcp;
using data_plane::Fd;
using Bytes = std::vector<std::uint8_t>;

constexpr std::chrono::seconds kPatience{30};
constexpr int kPatienceMs = 30'000;

bool is_ready(int fd, short events, int timeout_ms) {
  pollfd polled{fd, events, 0};
  return ::poll(&polled, 1, timeout_ms) == 1;
}

// One end of a connection, which gives up after its patience.
class End {
 public:
  explicit End(Fd fd) : fd_(std::move(fd)) {}

  bool send(std::span<const std::uint8_t> bytes) {
    while (!bytes.empty()) {
      if (!is_ready(fd_.get(), POLLOUT, kPatienceMs)) return false;
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // So many bytes, or fewer when the stream ended before.
  Bytes read(std::size_t count) {
    Bytes bytes;
    while (bytes.size() < count && is_ready(fd_.get(), POLLIN, kPatienceMs)) {
      std::uint8_t part[4'096];
      const ssize_t got = ::recv(fd_.get(), part, std::min(sizeof part, count - bytes.size()), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) break;
      if (got > 0) bytes.insert(bytes.end(), part, part + got);
    }
    return bytes;
  }
  Bytes read_to_end() { return read(~std::size_t{0}); }
  bool has_input() { return is_ready(fd_.get(), POLLIN, 0); }
  // Whether the end of the stream, and nothing before it, comes.
  bool at_end() {
    std::uint8_t byte = 0;
    return is_ready(fd_.get(), POLLIN, kPatienceMs) && ::recv(fd_.get(), &byte, 1, 0) <= 0;
  }
  void close() { fd_.reset(); }

 private:
  Fd fd_;
};

Bytes pattern(std::size_t count) {
  Bytes bytes(count);
  Prng prng(7);
  prng.fill(bytes);
  return bytes;
}

class RelayTest : public testing::Test {
 protected:
  End connect() { return End(std::move(*tcp::start_connect("127.0.0.1", relay_.port()))); }
  End accept() {
    EXPECT_TRUE(is_ready(listener_.fd.get(), POLLIN, kPatienceMs));
    return End(Fd(::accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
  }

  tcp::Listener listener_{std::move(tcp::listen_on("127.0.0.1", 0).value())};
  Relay relay_{"127.0.0.1", listener_.port};
};

TEST_F(RelayTest, PassesBytesBothWays) {
  End source = connect();
  End target = accept();
  const Bytes bytes = pattern(1U << 20);
  std::thread sender([&] { EXPECT_TRUE(source.send(bytes)); });
  EXPECT_EQ(target.read(bytes.size()), bytes);
  sender.join();
  std::thread replier([&] { EXPECT_TRUE(target.send(bytes)); });
  EXPECT_EQ(source.read(bytes.size()), bytes);
  replier.join();
  EXPECT_EQ(relay_.passed(Way::kToTarget), bytes.size());
  EXPECT_EQ(relay_.taken(Way::kToSource), bytes.size());
}

TEST_F(RelayTest, ADelayHoldsBytesOfItsWayAlone) {
  End source = connect();
  End target = accept();
  relay_.set(Way::kToTarget, {.delay = std::chrono::hours(1)});
  ASSERT_TRUE(source.send(Bytes{1, 2}));
  ASSERT_TRUE(relay_.wait_taken(Way::kToTarget, 2, kPatience));
  ASSERT_TRUE(target.send(Bytes{3}));
  EXPECT_EQ(source.read(1), (Bytes{3}));
  EXPECT_FALSE(target.has_input());
  relay_.set(Way::kToTarget, {});
  EXPECT_EQ(target.read(2), (Bytes{1, 2}));

  const auto start = Relay::Clock::now();
  relay_.set(Way::kToTarget, {.delay = std::chrono::milliseconds(50)});
  ASSERT_TRUE(source.send(Bytes{4}));
  EXPECT_EQ(target.read(1), (Bytes{4}));
  EXPECT_GE(Relay::Clock::now() - start, std::chrono::milliseconds(50));
}

TEST_F(RelayTest, AConnectionCanBeSlowByItself) {
  End first = connect();
  End first_target = accept();
  End second = connect();
  End second_target = accept();
  relay_.set(0, Way::kToTarget, {.delay = std::chrono::hours(1)});
  ASSERT_TRUE(first.send(Bytes{1}));
  ASSERT_TRUE(relay_.wait_taken(Way::kToTarget, 1, kPatience));
  ASSERT_TRUE(second.send(Bytes{2}));
  EXPECT_EQ(second_target.read(1), (Bytes{2}));
  EXPECT_FALSE(first_target.has_input());
}

TEST_F(RelayTest, ARateLimitsItsWay) {
  relay_.set(Way::kToTarget, {.bytes_per_s = 1'000'000});
  End source = connect();
  End target = accept();
  const Bytes bytes = pattern(100'000);
  const auto start = Relay::Clock::now();
  std::thread sender([&] { EXPECT_TRUE(source.send(bytes)); });
  EXPECT_EQ(target.read(bytes.size()), bytes);
  sender.join();
  // The last step's pause comes after it.
  EXPECT_GE(Relay::Clock::now() - start, std::chrono::milliseconds(90));
}

TEST_F(RelayTest, ACutComesAfterExactlySoManyBytes) {
  const Bytes bytes = pattern(40'000);
  std::uint64_t cuts = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{20'000}, bytes.size() - 1, bytes.size()}) {
    End source = connect();
    End target = accept();
    relay_.cut_after(count);
    EXPECT_FALSE(relay_.has_cut());
    source.send(bytes);  // fails when the cut comes before its end
    EXPECT_EQ(target.read_to_end(), Bytes(bytes.begin(), bytes.begin() + count));
    EXPECT_TRUE(source.at_end());
    EXPECT_TRUE(relay_.wait_cut(kPatience));
    ++cuts;
  }
  EXPECT_EQ(cuts, 5U);
}

TEST_F(RelayTest, ACutMayWaitForTheReplyAndConcernOneConnection) {
  End first = connect();
  End first_target = accept();
  End second = connect();
  End second_target = accept();
  relay_.cut_after(Way::kToSource, 0, 1);
  ASSERT_TRUE(first_target.send(Bytes{9}));
  EXPECT_EQ(first.read(1), (Bytes{9}));
  ASSERT_TRUE(second.send(Bytes{1, 2, 3}));
  EXPECT_EQ(second_target.read(3), (Bytes{1, 2, 3}));
  EXPECT_FALSE(relay_.has_cut());
  ASSERT_TRUE(second_target.send(Bytes{4}));
  EXPECT_TRUE(second.at_end());
  EXPECT_TRUE(second_target.at_end());
  ASSERT_TRUE(first.send(Bytes{5}));
  EXPECT_EQ(first_target.read(1), (Bytes{5}));
}

TEST_F(RelayTest, ABlackHoleTakesEverythingAndClosesNothing) {
  End source = connect();
  End target = accept();
  relay_.swallow(true);
  const Bytes lost = pattern(300'000);  // more than the relay and the kernel hold
  ASSERT_TRUE(source.send(lost));
  ASSERT_TRUE(target.send(lost));
  ASSERT_TRUE(relay_.wait_taken(Way::kToTarget, lost.size(), kPatience));
  ASSERT_TRUE(relay_.wait_taken(Way::kToSource, lost.size(), kPatience));
  // A new connection is accepted and as mute.
  End late = connect();
  End late_target = accept();
  ASSERT_TRUE(late.send(Bytes{7}));
  ASSERT_TRUE(relay_.wait_taken(Way::kToTarget, lost.size() + 1, kPatience));
  EXPECT_EQ(relay_.passed(Way::kToTarget), 0U);
  EXPECT_EQ(relay_.connections(), 2U);
  relay_.swallow(false);
  ASSERT_TRUE(source.send(Bytes{1}));
  EXPECT_EQ(target.read(1), (Bytes{1}));
  ASSERT_TRUE(late.send(Bytes{2}));
  EXPECT_EQ(late_target.read(1), (Bytes{2}));
  ASSERT_TRUE(target.send(Bytes{3}));
  EXPECT_EQ(source.read(1), (Bytes{3}));
}

TEST_F(RelayTest, ABlackHoleOneWayHidesALostPeer) {
  End source = connect();
  End target = accept();
  relay_.set(Way::kToTarget, {.swallow = true});
  ASSERT_TRUE(source.send(Bytes{1, 2}));
  ASSERT_TRUE(relay_.wait_taken(Way::kToTarget, 2, kPatience));
  source.close();
  // The target is told of nothing; what it sends is accepted.
  ASSERT_TRUE(target.send(Bytes{3}));
  ASSERT_TRUE(relay_.wait_taken(Way::kToSource, 1, kPatience));
  EXPECT_FALSE(target.has_input());
  relay_.set(Way::kToTarget, {});
  EXPECT_TRUE(target.at_end());
}

TEST_F(RelayTest, ABlackHoleNeedsNoTarget) {
  listener_.fd.reset();
  relay_.swallow(true);
  End source = connect();
  ASSERT_TRUE(source.send(Bytes{1}));
  ASSERT_TRUE(relay_.wait_taken(Way::kToTarget, 1, kPatience));
  EXPECT_FALSE(source.has_input());
}

TEST_F(RelayTest, AHalfCloseLeavesTheOtherWayOpen) {
  End source = connect();
  End target = accept();
  ASSERT_TRUE(source.send(Bytes{1}));
  EXPECT_EQ(target.read(1), (Bytes{1}));
  relay_.half_close(Way::kToTarget);
  EXPECT_TRUE(target.at_end());
  EXPECT_FALSE(source.has_input());
  const Bytes bytes = pattern(100'000);
  std::thread sender([&] { EXPECT_TRUE(target.send(bytes)); });
  EXPECT_EQ(source.read(bytes.size()), bytes);
  sender.join();
  target.close();
  EXPECT_TRUE(source.at_end());
}

TEST_F(RelayTest, TheKthByteIsFlippedAndNoOther) {
  End source = connect();
  End target = accept();
  ASSERT_TRUE(source.send(Bytes{1, 2, 3}));
  EXPECT_EQ(target.read(3), (Bytes{1, 2, 3}));
  relay_.flip_byte(Way::kToTarget, 20'000);
  Bytes bytes = pattern(50'000);
  std::thread sender([&] { EXPECT_TRUE(source.send(bytes)); });
  const Bytes got = target.read(bytes.size());
  sender.join();
  bytes[20'000] ^= 1;
  EXPECT_EQ(got, bytes);
}

TEST_F(RelayTest, FlipsBySeedRepeatThemselves) {
  const Bytes bytes = pattern(50'000);
  std::vector<std::vector<std::size_t>> flipped;
  for (const std::uint64_t seed : {1U, 1U, 2U}) {
    Relay relay("127.0.0.1", listener_.port);
    relay.set(Way::kToTarget, {.flip_one_in = 1'000, .flip_seed = seed});
    End source(std::move(*tcp::start_connect("127.0.0.1", relay.port())));
    End target = accept();
    std::thread sender([&] { EXPECT_TRUE(source.send(bytes)); });
    const Bytes got = target.read(bytes.size());
    sender.join();
    ASSERT_EQ(got.size(), bytes.size());
    std::vector<std::size_t>& where = flipped.emplace_back();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto difference = static_cast<unsigned>(got[i] ^ bytes[i]);
      if (difference == 0) continue;
      EXPECT_EQ(difference & (difference - 1), 0U) << "one bit of byte " << i;
      where.push_back(i);
    }
  }
  EXPECT_EQ(flipped[0], flipped[1]);
  EXPECT_NE(flipped[0], flipped[2]);
  EXPECT_GT(flipped[0].size(), 20U);
  EXPECT_LT(flipped[0].size(), 100U);
}

TEST_F(RelayTest, WhileFrozenNothingPassesAndSendersAreHeldUp) {
  End source = connect();
  End target = accept();
  ASSERT_TRUE(source.send(Bytes{1}));
  EXPECT_EQ(target.read(1), (Bytes{1}));
  relay_.freeze(true);
  const std::uint64_t passed = relay_.passed(Way::kToTarget);
  ASSERT_TRUE(source.send(Bytes{2}));
  End late = connect();
  ASSERT_TRUE(late.send(Bytes{3}));  // held by the kernel
  EXPECT_EQ(relay_.passed(Way::kToTarget), passed);
  EXPECT_FALSE(target.has_input());
  EXPECT_EQ(relay_.connections(), 1U);
  relay_.freeze(false);
  EXPECT_EQ(target.read(1), (Bytes{2}));
  End late_target = accept();
  EXPECT_EQ(late_target.read(1), (Bytes{3}));
}

TEST_F(RelayTest, ACutClosesAllAndNewConnectionsPass) {
  End source = connect();
  End target = accept();
  ASSERT_TRUE(source.send(Bytes{1}));
  EXPECT_EQ(target.read(1), (Bytes{1}));
  relay_.cut();
  EXPECT_TRUE(source.at_end());
  EXPECT_TRUE(target.at_end());
  End next = connect();
  End next_target = accept();
  ASSERT_TRUE(next.send(Bytes{2}));
  EXPECT_EQ(next_target.read(1), (Bytes{2}));
}

}  // namespace
}  // namespace kvferry::support
