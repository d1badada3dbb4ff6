// The channel between the processes, and the contract with a peer's command.
#include "bench/transfer/child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace kvferry::bench {
namespace {

constexpr std::chrono::milliseconds kPatienceOfTests{30'000};

bool never() { return false; }

TEST(Channel, CarriesNumbersTextAndADescriptor) {
  auto ends = Channel::make_pair();
  ASSERT_TRUE(ends);
  Message sent{Kind::kGrant, {1, 2, 3}, "words", data_plane::Fd(::open("/dev/null", O_RDWR))};
  ASSERT_TRUE(ends->first.send(sent));
  const auto got = ends->second.expect(Kind::kGrant, kPatienceOfTests);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->numbers[2], 3U);
  EXPECT_EQ(got->text, "words");
  EXPECT_EQ(::write(got->fd.get(), "x", 1), 1);
}

TEST(Channel, TellsAFailureByItsWordsAndAGoneEnd) {
  auto ends = Channel::make_pair();
  ASSERT_TRUE(ends);
  ASSERT_TRUE(ends->first.send({Kind::kFailed, {}, "no memory", {}}));
  const auto failed = ends->second.expect(Kind::kReady, kPatienceOfTests);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().what, "no memory");
  { const Channel gone = std::move(ends->first); }
  EXPECT_FALSE(ends->second.receive(kPatienceOfTests));
}

TEST(Peer, AnswersRunsByTheContract) {
  auto peer = PeerProcess::start("fake",
                                 "echo 'ready {\"version\": \"1.2\", \"settings\": \"none\"}'; "
                                 "while read word block seconds batch; do "
                                 "  [ \"$word\" = run ] || exit 0; "
                                 "  if [ \"$block\" = 4096 ]; then echo '{\"gbps\": 2.5}'; "
                                 "  else echo '{\"error\": \"too large\"}'; fi; "
                                 "done",
                                 never);
  ASSERT_TRUE(peer) << peer.error().what;
  EXPECT_EQ((*peer)->version(), "1.2");
  EXPECT_EQ((*peer)->settings(), "none");
  const auto good = (*peer)->run("4096", 0.1, 0, never);
  ASSERT_TRUE(good);
  EXPECT_DOUBLE_EQ(*good, 2.5);
  const auto bad = (*peer)->run("65536", 0.1, 0, never);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().what, "peer fake: too large");
}

TEST(Peer, ThatEndsOrSaysSomethingElseIsAFailure) {
  EXPECT_FALSE(PeerProcess::start("ended", "exit 3", never));
  EXPECT_FALSE(PeerProcess::start("chatty", "echo hello; sleep 60", never));
  EXPECT_FALSE(PeerProcess::start("garbled", "echo 'ready {'; sleep 60", never));
}

TEST(Peer, WaitingForItEndsWhenInterrupted) {
  const auto peer = PeerProcess::start("mute", "sleep 60", [] { return true; });
  ASSERT_FALSE(peer);
  EXPECT_EQ(peer.error().code, FailureCode::kAborted);
}

}  // namespace
}  // namespace kvferry::bench
