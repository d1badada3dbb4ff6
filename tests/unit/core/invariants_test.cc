// The checks themselves: that they speak when something is broken, and name what.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/role_protocol.h"

namespace kvferry::core {
namespace {

class NoRandomness final : public Environment {
 public:
  std::uint64_t random_u64() override { return 0; }
  void fill_random(std::span<std::uint8_t>) override {}
  wire::Proof hmac(std::span<const std::uint8_t>, std::span<const std::uint8_t>) override {
    return {};
  }
};

// A role that only says what happened to its rooms.
class Rooms final : public RoleProtocol {
 public:
  explicit Rooms(Environment& environment) : RoleProtocol(ProtocolConfig{}, environment) {}
  using RoleProtocol::note_moved;
  using RoleProtocol::note_opened;
  using RoleProtocol::report_missing_row;

  Snapshot snapshot(Instant, std::size_t) const override { return {}; }
  std::vector<std::string> check_invariants() const override {
    std::vector<std::string> broken = violations_;
    check_room_count(live, broken);
    return broken;
  }
  std::size_t live = 0;

 private:
  void settle(Event&) override {}
  void settle(SessionOutput&) override {}
  bool run_due_timer() override { return false; }
  Instant next_room_deadline() const override { return Instant::max(); }
  Instant opened_at(std::uint64_t) const override { return {}; }
};

class Invariants : public ::testing::Test {
 protected:
  // The only broken one.
  std::string broken() const {
    const std::vector<std::string> all = rooms.check_invariants();
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? std::string() : all.front();
  }
  NoRandomness environment;
  Rooms rooms{environment};
};

TEST_F(Invariants, RoomsThatAreOpenedAndEndAreAllCounted) {
  rooms.note_opened(1);
  rooms.live = 1;
  EXPECT_TRUE(rooms.check_invariants().empty());
  rooms.note_moved(1, KvPoll::kBootstrapping, KvPoll::kWaitingForInput);
  rooms.note_moved(1, KvPoll::kWaitingForInput, KvPoll::kTransferring);
  EXPECT_TRUE(rooms.check_invariants().empty());
  rooms.note_moved(1, KvPoll::kTransferring, KvPoll::kSuccess);
  EXPECT_EQ(broken(), "R4: 1 rooms were opened; 1 succeeded, 0 failed, 1 live");
  rooms.live = 0;
  EXPECT_TRUE(rooms.check_invariants().empty());
  rooms.note_opened(1);
  EXPECT_EQ(broken(), "R4: 2 rooms were opened; 1 succeeded, 0 failed, 0 live");
  rooms.note_moved(1, KvPoll::kBootstrapping, KvPoll::kFailed);
  EXPECT_TRUE(rooms.check_invariants().empty());
}

TEST_F(Invariants, AStatusThatGoesBackIsReported) {
  rooms.note_moved(1, KvPoll::kTransferring, KvPoll::kWaitingForInput);
  EXPECT_EQ(broken(), "S5: a room went from Transferring to WaitingForInput");
}

TEST_F(Invariants, AnEndThatChangesIsReported) {
  rooms.note_opened(1);
  rooms.note_moved(1, KvPoll::kTransferring, KvPoll::kSuccess);
  rooms.note_opened(1);
  rooms.note_moved(1, KvPoll::kSuccess, KvPoll::kFailed);
  EXPECT_EQ(broken(), "S5: a room went from Success to Failed");
}

TEST_F(Invariants, ATransitionThatTheTablesLackIsReported) {
  rooms.report_missing_row("grant", "free", "grant");
  EXPECT_EQ(broken(), "S5: grant: free --grant--> nowhere");
}

TEST_F(Invariants, AFactThatIsBrokenInEveryStepFillsNoMemory) {
  for (int i = 0; i < 1'000; ++i) {
    rooms.report_missing_row("grant", "free", "grant");
  }
  EXPECT_LT(rooms.check_invariants().size(), 100U);
}

}  // namespace
}  // namespace kvferry::core
