// Attempts are distinct: nothing that is late, repeated or of the same room number revives,
// completes or kills another attempt. What fails in the field, per test:
//   two requests under one room number, the second overwrites the first's record  (sglang 40125,
//   6857) a room number that is used again reads its predecessor's status              (sglang
//   17259, smg 2463) a manifest that comes after its sender has timed out waits for ever, and its
//   receiver with it
//                                                                  (vllm 42839, 53250, sglang
//                                                                  27374)
//   a message of the former attempt completes or aborts the present one          (sglang 40730)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "stage.h"

namespace kvferry::sim::scene {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Missing without(core::Guard guard) { return {guard, ModelGuard::kNone}; }

// --- 1: duplicates and reuse ---

TEST(RoomIdentity, OfTwoOpensInOneTurnOneIsADuplicate) {
  Stage stage(calm_profile(TransportKind::kStream));
  for (const std::string& place : {std::string("d0"), std::string("p0.0")}) {
    Node& node = stage[place];
    for (std::uint64_t i = 1; i <= 1'000; ++i) {
      const core::RoomKey key{RoomId(42), Binding{42, i}};
      const std::uint64_t first = node.open(key);
      const std::uint64_t second = node.open(key);
      stage.run_for(milliseconds(1));
      ASSERT_EQ(node.poll(first), KvPoll::kBootstrapping);
      ASSERT_EQ(node.poll(second), KvPoll::kFailed);
      ASSERT_EQ(node.cell(second).failure->code, FailureCode::kDuplicateRoom);
      node.clear(second);
      stage.run_for(milliseconds(1));
      ASSERT_EQ(node.poll(first), KvPoll::kBootstrapping)
          << "the duplicate's end is not the first's";
      node.clear(first);
      stage.run_for(milliseconds(1));
    }
  }
  EXPECT_EQ(stage.finish(), "");
}

TEST(RoomIdentity, ASecondAttemptStartsAtTheStartWhileTheFirstReadsSuccess) {
  Stage stage(calm_profile(TransportKind::kStream));
  Room& first = stage.transfer(7, 3);
  EXPECT_EQ(stage.take_trace(), R"(
d0 room 7 WaitingForInput
d0 room 7 Transferring
d0 > p0.0 grant
p0.0 room 7 WaitingForInput
p0.0 room 7 Transferring
d0 fences grant 1
p0.0 room 7 releases 3 pages
p0.0 > d0 done
d0 room 7 Success
d0 > p0.0 consumed
p0.0 room 7 Success
)");
  ASSERT_TRUE(stage.has_succeeded(first));
  Room& second = stage.room(7, 2);
  stage.open_at(second, "d0");
  stage.open_at(second, "p0.0");
  stage.run_for(milliseconds(5));
  EXPECT_EQ(stage.cell(second, "p0.0").status, KvPoll::kBootstrapping);
  EXPECT_EQ(stage.cell(second, "d0").status, KvPoll::kWaitingForInput);
  EXPECT_TRUE(stage.has_succeeded(first));
  stage.give_at(second, "d0");
  stage.give_at(second, "p0.0");
  EXPECT_TRUE(stage.await([&] { return stage.has_succeeded(second); }));
  EXPECT_EQ(stage.take_trace(), R"(
d0 room 7 WaitingForInput
d0 room 7 Transferring
d0 > p0.0 grant
p0.0 room 7 WaitingForInput
p0.0 room 7 Transferring
p0.0 room 7 releases 2 pages
p0.0 > d0 done
d0 fences grant 2
d0 room 7 Success
d0 > p0.0 consumed
p0.0 room 7 Success
)");
  EXPECT_TRUE(stage.has_succeeded(first));
  EXPECT_NE(stage.cell(first, "d0").attempt, stage.cell(second, "d0").attempt);
  EXPECT_EQ(stage.finish(), "");
}

// --- 2: what comes late ---

// The sender's deadline passes at 200 ms; the receiver's grant leaves at 300 ms.
struct LateGrant {
  explicit LateGrant(const Missing& missing = {}) : stage(short_bootstrap(), missing) {
    stage.clear(stage.transfer(1, 1));  // the pair has met
    stage.run_for(milliseconds(50));
    room = &stage.room(8, 3);
    stage.take_trace();
    stage.start_clock();
    stage.open_at(*room, "p0.0");
    stage.at(milliseconds(290), [this] { stage.open_at(*room, "d0"); });
    stage.at(milliseconds(300), [this] { stage.give_at(*room, "d0"); });
  }
  static Profile short_bootstrap() {
    Profile profile = calm_profile(TransportKind::kStream);
    profile.options.bootstrap_timeout_ms = 200;
    profile.options.unopened_room_timeout_ms = 60'000;
    return profile;
  }

  Stage stage;
  Room* room = nullptr;
};

TEST(RoomIdentity, AGrantAfterItsSendersDeadlineHearsTheFirstCause) {
  LateGrant scene;
  Stage& stage = scene.stage;
  stage.run_until(milliseconds(350));
  EXPECT_EQ(stage.take_trace(), R"(
p0.0 room 8 Failed: room-timeout at local (rank 0): no end of Bootstrapping by its deadline, waiting for grants (0 of ? are here)
d0 room 8 WaitingForInput
d0 room 8 Transferring
d0 > p0.0 grant
p0.0 > d0 failed+drained
d0 room 8 Failed: room-timeout at peer (peer p0.0:1, rank 0): no end of Bootstrapping by its deadline, waiting for grants (0 of ? are here)
d0 fences grant 2
d0 > p0.0 abort
d0 room 8 releases 3 pages
d0 > p0.0 fenced
p0.0 > d0 drained
)");
  const Cell& sender = stage.cell(*scene.room, "p0.0");
  const Cell& receiver = stage.cell(*scene.room, "d0");
  ASSERT_TRUE(sender.failure && receiver.failure);
  EXPECT_EQ(receiver.failure->code, FailureCode::kRoomTimeout);
  EXPECT_EQ(receiver.failure->what, sender.failure->what);
  EXPECT_EQ(receiver.failure->peer, "p0.0:1");
  EXPECT_EQ(stage.finish(), "");
}

// Control: the grant waits for a sender that will not come, and so does its receiver.
TEST(RoomIdentityControl, WithoutMemoryOfEndedSendersTheLateGrantIsAnOrphan) {
  LateGrant scene(without(core::Guard::kEndedSender));
  Stage& stage = scene.stage;
  stage.run_until(milliseconds(350));
  EXPECT_EQ(stage.cell(*scene.room, "d0").status, KvPoll::kTransferring);
  stage.run_until(std::chrono::seconds(30));
  Node& decode = stage["d0"];
  EXPECT_EQ(decode.snapshot().grants, 1U);
  stage.world().oracle.check_quiescence(decode, false);
  EXPECT_THAT(stage.verdict(), StartsWith("R1: d0#1: 1 open rooms are left"));
}

// The grant of an attempt is lost and comes again after the attempt's Abort.
struct GrantAfterAbort {
  explicit GrantAfterAbort(const Missing& missing = {})
      : stage(calm_profile(TransportKind::kOneSided), missing) {
    stage.clear(stage.transfer(1, 1));
    stage.run_for(milliseconds(50));
    stage.loses = [this](const std::string&, const std::string&, const wire::Message& message) {
      const auto* grant = std::get_if<wire::Grant>(&message);
      return grant != nullptr && grant->room == RoomId(9) && stage.now() < milliseconds(50);
    };
    stage.take_trace();
    stage.start_clock();
    room = &stage.room(9, 8);
    stage.open_decode(*room);
    stage.open_prefill(*room);
    stage.at(milliseconds(20), [this] { stage.abort_decode(*room); });
  }

  Stage stage;
  Room* room = nullptr;
};

TEST(RoomIdentity, AGrantThatComesAfterItsAbortStartsNothing) {
  GrantAfterAbort scene;
  Stage& stage = scene.stage;
  stage.run_until(milliseconds(400));
  EXPECT_EQ(stage.take_trace(), R"(
d0 room 9 WaitingForInput
d0 room 9 Transferring
d0 > p0.0 grant
d0 room 9 aborted by its caller
d0 > p0.0 abort
p0.0 room 9 Failed: aborted at peer (peer d0:1, rank 0): the client went away
p0.0 room 9 releases 8 pages
p0.0 > d0 drained
d0 room 9 releases 8 pages
d0 > p0.0 grant+abort
p0.0 > d0 failed+drained
)");
  EXPECT_EQ(stage["p0.0"].counter("late_grants"), 1U);
  EXPECT_EQ(stage.cell(*scene.room, "p0.0").failure->code, FailureCode::kAborted);
  EXPECT_EQ(stage.free_pages("d0"), 64U);
  EXPECT_EQ(stage.finish(), "");
}

// Control: the orphan writes into pages that decode has given back long ago.
TEST(RoomIdentityControl, WithoutTombstonesTheGrantAfterItsAbortStartsAnOrphan) {
  GrantAfterAbort scene(without(core::Guard::kTombstone));
  scene.stage.run_until(milliseconds(400));
  EXPECT_THAT(scene.stage.verdict(), StartsWith("S1: d0: a write of"));
  EXPECT_THAT(scene.stage.verdict(), HasSubstr("the grant does not hold it"));
}

// --- 2: replays of attempt 1 during attempt 2 ---

// Attempt 1 has ended, well or by an abort in its middle; attempt 2 of the same room number is
// under way, its frames are the slower the more time the replays shall have.
class Replays : public ::testing::TestWithParam<std::tuple<TransportKind, bool>> {
 protected:
  Replays() : stage(slow_profile(std::get<0>(GetParam()))) {
    Room& first = stage.room(7, 8);
    stage.open_decode(first);
    stage.open_prefill(first);
    if (std::get<1>(GetParam())) {
      stage.run_for(milliseconds(20));
      stage.abort_decode(first);
    }
    stage.await([&] { return stage.has_ended(first); });
    stage.run_for(milliseconds(300));
    stage.clear(first);
    stage.run_for(milliseconds(300));
    old = stage.deliveries();
    second = &stage.room(7, 8);
    stage.open_decode(*second);
    stage.open_prefill(*second);
    stage.run_for(milliseconds(15));
  }
  static Profile slow_profile(TransportKind transport) {
    Profile profile = calm_profile(transport);
    profile.write_latency = milliseconds(4);
    profile.frame_writes = 1;
    return profile;
  }
  std::uint64_t count(std::string_view counter) {
    return stage["d0"].counter(counter) + stage["p0.0"].counter(counter);
  }

  Stage stage;
  std::vector<Delivery> old;
  Room* second = nullptr;
};

std::string name_of_replay(const ::testing::TestParamInfo<Replays::ParamType>& test) {
  constexpr const char* kTransports[] = {"Stream", "Shared", "OneSided"};
  const auto [transport, aborted] = test.param;
  return std::string(kTransports[static_cast<std::size_t>(transport)]) +
         (aborted ? "AfterAbort" : "AfterSuccess");
}

INSTANTIATE_TEST_SUITE_P(All, Replays,
                         ::testing::Combine(::testing::Values(TransportKind::kStream,
                                                              TransportKind::kShared,
                                                              TransportKind::kOneSided),
                                            ::testing::Bool()),
                         name_of_replay);

template <typename Kind>
bool contains(const std::vector<Delivery>& deliveries) {
  return std::ranges::any_of(
      deliveries, [](const Delivery& each) { return std::holds_alternative<Kind>(each.message); });
}

TEST_P(Replays, AreOfEveryKindThatTheAttemptHad) {
  const bool aborted = std::get<1>(GetParam());
  EXPECT_TRUE(contains<wire::Grant>(old));
  EXPECT_EQ(contains<wire::Done>(old), !aborted);
  EXPECT_EQ(contains<wire::Consumed>(old), !aborted);
  EXPECT_EQ(contains<wire::Abort>(old), aborted);
  EXPECT_EQ(contains<wire::Drained>(old), aborted);
}

// As the frames that they were: their numbers are known.
TEST_P(Replays, OfOldFramesAreDroppedByNumber) {
  ASSERT_FALSE(stage.has_ended(*second));
  const std::uint64_t before = count("duplicate_messages");
  for (const Delivery& each : old) {
    stage.replay(each, true);
  }
  stage.run_for(milliseconds(5));
  EXPECT_EQ(count("duplicate_messages") - before, old.size());
  EXPECT_TRUE(stage.await([&] { return stage.has_ended(*second); }));
  EXPECT_TRUE(stage.has_succeeded(*second));
  EXPECT_EQ(stage.finish(), "");
}

// Past the window of numbers, one by one: each is known to be of another attempt. Abort is answered
// Drained and Fenced changes nothing, neither is counted.
TEST_P(Replays, OfOldMessagesAreStale) {
  for (const Delivery& each : old) {
    ASSERT_FALSE(stage.has_ended(*second));
    const std::uint64_t before = count("stale_messages") + count("late_grants");
    stage.replay(each, false);
    stage.run_for(std::chrono::microseconds(300));
    const bool silent = std::holds_alternative<wire::Abort>(each.message) ||
                        std::holds_alternative<wire::Fenced>(each.message);
    EXPECT_EQ(count("stale_messages") + count("late_grants") - before, silent ? 0U : 1U)
        << wire::kind_name(each.message);
  }
  EXPECT_TRUE(stage.await([&] { return stage.has_ended(*second); }));
  EXPECT_TRUE(stage.has_succeeded(*second));
  EXPECT_EQ(stage.deliveries_of<wire::Done>().size(), std::get<1>(GetParam()) ? 1U : 2U);
  EXPECT_EQ(stage.finish(), "");
}

}  // namespace
}  // namespace kvferry::sim::scene
