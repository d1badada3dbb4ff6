// Writers on a transport without a fence are killed in the middle of their writes, and nobody hears
// of it: their pages stay in quarantine until the sessions are torn down. In the field such pages
// are used again by timer (sglang 36707, SGLang 0.5.23's W2) or the server takes rooms until
// nothing is free and then hangs. Here the quarantine has a cap with a name, and what it does not
// touch goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stage.h"

namespace kvferry::sim::scene {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;

constexpr std::uint32_t kCap = 32;  // half of the pool

Profile three_instances() {
  Profile profile = calm_profile(TransportKind::kOneSided);
  profile.prefill_instances = 3;
  profile.write_latency = milliseconds(4);
  profile.frame_writes = 1;
  profile.options.quarantine_max_pages = kCap;
  return profile;
}

class Quarantine : public ::testing::Test {
 protected:
  explicit Quarantine(const Missing& missing = {}) : stage(three_instances(), missing) {
    for (std::uint32_t instance = 0; instance < 3; ++instance) {
      stage.clear(stage.transfer(instance + 1, 1, instance));
    }
    stage.run_for(milliseconds(50));
    stage.take_trace();
    stage.start_clock();
  }

  // The prefill's only rank goes away in the middle of a room of 16 pages, as with a pulled cable;
  // decode's caller ends the room.
  Room& kill_writer(std::uint32_t instance) {
    Room& room = stage.room(10 + instance, 16, instance);
    stage.open_decode(room);
    stage.open_prefill(room);
    stage.run_for(milliseconds(30));
    Node& writer = stage[stage.prefill_names(instance).front()];
    const std::uint32_t decode = stage["d0"].place().index;
    stage.world().network.block(writer.place().index, decode);
    stage.world().network.block(decode, writer.place().index);
    stage.world().kill(writer);
    stage.abort_decode(room);
    stage.run_for(milliseconds(10));
    return room;
  }
  std::uint64_t in_quarantine() { return stage["d0"].snapshot().quarantined_pages; }
  // Opens on both sides and lets it end, well or not.
  const Cell& try_room(std::uint64_t number) {
    Room& room = stage.transfer(number, 4, 2);
    const Cell& cell = stage.cell(room, "d0");
    stage.clear(room);
    return cell;
  }

  Stage stage;
};

class QuarantineWithoutCap : public Quarantine {
 protected:
  QuarantineWithoutCap() : Quarantine({core::Guard::kQuarantineCap, ModelGuard::kNone}) {}
};

TEST_F(Quarantine, OfHalfThePoolRefusesNewRoomsAndLeavesHealthyOnesAlone) {
  kill_writer(0);
  EXPECT_EQ(in_quarantine(), 16U);
  EXPECT_EQ(stage.free_pages("d0"), 48U);
  EXPECT_EQ(try_room(20).status, KvPoll::kSuccess) << "below the cap new rooms are admitted";

  Room& holds_its_grant = stage.room(21, 12, 2);
  stage.open_decode(holds_its_grant);
  stage.open_prefill(holds_its_grant);
  kill_writer(1);
  EXPECT_EQ(in_quarantine(), kCap);
  EXPECT_FALSE(stage.has_ended(holds_its_grant));
  Node& decode = stage["d0"];
  EXPECT_THAT(decode.snapshot().readiness_problems, Contains("quarantine holds 32 pages (cap 32)"));

  const std::uint64_t refused = decode.open({RoomId(22), Binding{22, 22}});
  stage.run_for(milliseconds(2));
  ASSERT_EQ(decode.poll(refused), KvPoll::kFailed);
  EXPECT_EQ(decode.cell(refused).failure->code, FailureCode::kQuarantineFull);
  EXPECT_EQ(decode.cell(refused).failure->what,
            "32 pages are in quarantine (quarantine_max_pages 32)");
  decode.clear(refused);
  EXPECT_TRUE(stage.await([&] { return stage.has_ended(holds_its_grant); }));
  EXPECT_TRUE(stage.has_succeeded(holds_its_grant));
  stage.clear(holds_its_grant);
  EXPECT_EQ(in_quarantine(), kCap) << "time alone frees nothing";

  // The silence ends the sessions, the transport tears them down, and everything is back.
  EXPECT_TRUE(stage.await([&] { return in_quarantine() == 0; }));
  EXPECT_EQ(decode.counter("sessions_torn_down"), 2U);
  EXPECT_EQ(stage.free_pages("d0"), 64U);
  EXPECT_THAT(decode.snapshot().readiness_problems, ::testing::IsEmpty());
  EXPECT_EQ(try_room(23).status, KvPoll::kSuccess);
  EXPECT_EQ(stage.finish(), "");
}

TEST_F(Quarantine, ReadsLikeThis) {
  Room& lost = kill_writer(0);
  EXPECT_EQ(stage.take_trace(), R"(
d0 room 10 WaitingForInput
d0 room 10 Transferring
d0 > p0.0 grant
p0.0 room 10 WaitingForInput
p0.0 room 10 Transferring
p0.0 dies
d0 room 10 aborted by its caller
d0 > p0.0 abort
)");
  EXPECT_TRUE(stage.await([&] { return in_quarantine() == 0; }));
  EXPECT_EQ(stage.take_trace(), R"(
d0 > p0.0 abort
d0 > p0.0 abort
d0 > p0.0 abort
d0 > p0.0 abort
d0 > p0.0 session_ended
d0 room 10 releases 16 pages
)");
  EXPECT_EQ(stage.cell(lost, "d0").failure->code, FailureCode::kAborted);
  EXPECT_EQ(stage.finish(), "");
}

// Control: the refusal does not come, a stuck peer may take the whole pool; the oracle knows the
// cap, too.
TEST_F(QuarantineWithoutCap, ControlTakesRoomsWhateverIsInQuarantine) {
  kill_writer(0);
  kill_writer(1);
  EXPECT_EQ(in_quarantine(), kCap);
  const std::uint64_t admitted = stage["d0"].open({RoomId(22), Binding{22, 22}});
  stage.run_for(milliseconds(2));
  EXPECT_EQ(stage["d0"].poll(admitted), KvPoll::kBootstrapping);
  EXPECT_THAT(stage.verdict(), ::testing::StartsWith("rule 6: d0"));
}

}  // namespace
}  // namespace kvferry::sim::scene
