// Rooms that succeed, in all shapes.
#include <gtest/gtest.h>

#include "scenario.h"

namespace kvferry::core::fake {
namespace {

class HappyPath : public Scenario {};

TEST_F(HappyPath, OneRoomReadsLikeThis) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(7), {4, 5, 6}, 0);
  const std::uint64_t sender = send(p(), name_room(7), {10, 11, 12}, 1);
  world.run_for(100);
  EXPECT_EQ(world.take_trace(), R"(
d0 > p0 hello
p0 > d0 hello_reply
d0 > p0 hello_confirm
p0 > d0 hello_confirmed
d0 room 7 WaitingForInput
d0 room 7 Transferring
d0 > p0 grant
p0 room 7 WaitingForInput
p0 room 7 Transferring
p0 posts 7 writes
d0 fences
p0 room 7 releases 3 pages
p0 > d0 done
d0 room 7 Success
d0 > p0 consumed
p0 room 7 Success
)");
  expect_success(d(), receiver);
  expect_success(p(), sender);
  EXPECT_EQ(p().cell(sender).landed_bytes, 3U * 16 + kAuxRecordBytes);
  // Success gives the granted pages to the caller, so nothing is released on decode.
  EXPECT_TRUE(d().cell(receiver).released.empty());
  expect_rest();
}

TEST_F(HappyPath, ASecondRoomNeedsNoHello) {
  engines();
  transfer(name_room(1));
  world.take_trace();
  const RoomPair pair = transfer(name_room(2));
  EXPECT_EQ(world.take_trace().find("hello"), std::string::npos);
  expect_success(d(), pair.receiver);
  expect_rest();
}

TEST_F(HappyPath, TheSenderComesFirst) {
  engines();
  const std::uint64_t sender = send(p(), name_room(1), {4, 5});
  world.run_for(100);
  expect_status(p(), sender, KvPoll::kBootstrapping);
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2});
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(HappyPath, TwoByTwoRanksDecideAlike) {
  engines(2, 2);
  std::vector<std::uint64_t> receivers;
  std::vector<std::uint64_t> senders;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    // Each prefill rank shares a head with one decode rank only.
    receivers.push_back(receive(d(rank), name_room(1), {1, 2, 3}, rank == 0 ? 0 : -1));
    senders.push_back(send(p(rank), name_room(1), {7, 8, 9}, rank == 0 ? 0 : -1));
  }
  world.run_for(100);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    expect_success(d(rank), receivers[rank]);
    expect_success(p(rank), senders[rank]);
  }
  expect_rest();
}

TEST_F(HappyPath, OnePrefillRankServesTwoDecodeRanks) {
  engines(1, 2);
  const std::uint64_t first = receive(d(0), name_room(1), {1, 2}, 0, 2);
  const std::uint64_t sender = send(p(), name_room(1), {7, 8}, 0);
  world.run_for(100);
  // Two grants are expected and one is there: nothing moves yet.
  expect_status(p(), sender, KvPoll::kBootstrapping);
  EXPECT_EQ(world.fabric().writes_posted(), 0U);
  const std::uint64_t second = receive(d(1), name_room(1), {3, 4}, 0, 2);
  world.run_for(100);
  expect_success(d(0), first);
  expect_success(d(1), second);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(HappyPath, TwoPrefillRanksServeOneDecodeRank) {
  engines(2, 1);
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2}, 0);
  const std::uint64_t first = send(p(0), name_room(1), {7, 8}, 0);
  world.run_for(100);
  expect_status(d(), receiver, KvPoll::kTransferring);
  const std::uint64_t second = send(p(1), name_room(1), {5, 6}, 0);
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(0), first);
  expect_success(p(1), second);
  expect_rest();
}

TEST_F(HappyPath, NoPages) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {}, 0);
  const std::uint64_t sender = send(p(), name_room(1), {}, 0);
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(HappyPath, NoPagesAndNoAux) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {});
  const std::uint64_t sender = send(p(), name_room(1), {});
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  EXPECT_EQ(world.fabric().writes_posted(), 0U);
  EXPECT_EQ(world.fabric().fences_ordered(), 1U);
  expect_rest();
}

TEST_F(HappyPath, PrefixPagesAreToldAndNotSent) {
  engines();
  const std::uint64_t receiver = d().open(name_room(1));
  d().init_receiver(receiver);
  d().give(receiver, {1, 2}, -1, 1, 5);
  const std::uint64_t sender = p().open(name_room(1));
  world.run_for(100);
  ASSERT_EQ(p().cell(sender).prefix, 5U);
  p().init_sender(sender, 2);
  p().send(sender, {8, 9});
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  expect_rest();
}

TEST_F(HappyPath, ChunksAreWrittenAsTheyCome) {
  engines();
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2, 3, 4}, 0);
  const std::uint64_t sender = p().open(name_room(1));
  p().init_sender(sender, 4, 0);
  // The first chunk comes before the grant.
  p().send(sender, {10});
  world.run_for(100);
  EXPECT_EQ(p().cell(sender).landed_bytes, 16U);
  p().send(sender, {11, 12});
  world.run_for(100);
  EXPECT_EQ(p().cell(sender).landed_bytes, 48U);
  expect_status(d(), receiver, KvPoll::kTransferring);
  EXPECT_EQ(p().pages_out().size(), 3U) << "source pages stay held until the last chunk landed";
  p().send(sender, {13});
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(), sender);
  EXPECT_TRUE(p().pages_out().empty());
  expect_rest();
}

TEST_F(HappyPath, WritesThatCompleteTwiceCountOnce) {
  engines();
  world.fabric().on_write = [](const PostedWrite&) { return WriteFate::kCompleteTwice; };
  const RoomPair pair = transfer(name_room(1));
  expect_success(d(), pair.receiver);
  expect_success(p(), pair.sender);
  EXPECT_EQ(p().counter("late_completions"), 7U);
  EXPECT_EQ(p().cell(pair.sender).landed_bytes, 3U * 16 + kAuxRecordBytes);
  expect_rest();
}

TEST_F(HappyPath, WithoutALocalFenceEveryDoneIsTheProof) {
  world.add_engines(2, 1, options_, TransportClass{false, false});
  const std::uint64_t receiver = receive(d(), name_room(1), {1, 2}, 0);
  const std::uint64_t first = send(p(0), name_room(1), {7, 8}, 0);
  const std::uint64_t second = send(p(1), name_room(1), {5, 6}, 0);
  world.run_for(100);
  expect_success(d(), receiver);
  expect_success(p(0), first);
  expect_success(p(1), second);
  EXPECT_EQ(world.fabric().fences_ordered(), 0U);
  EXPECT_EQ(world.links().sent<wire::Progress>(), 2U);
}

}  // namespace
}  // namespace kvferry::core::fake
