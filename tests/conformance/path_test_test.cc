// The test of a session's data path, over each transport: what it says, and that nothing else of it
// is seen.
#include "data_plane/path_test.h"

#include <gtest/gtest.h>

#include <map>

#include "data_plane/factory.h"
#include "data_plane/memory/memory_transport.h"
#include "recording_sink.h"
#include "rig.h"

namespace kvferry::data_plane {
namespace {

constexpr SessionEpoch kSession{77};
constexpr std::uint32_t kSlots = 4;

class Sink final : public CompletionSink {
 public:
  std::optional<Status> wait_result(SessionEpoch session) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return results_.contains(session); });
    const auto found = results_.find(session);
    if (found == results_.end()) return std::nullopt;
    return found->second;
  }
  bool wait_released() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return released_; });
  }
  bool wait_fence(GrantId grant) { return others.wait_fence(grant.value()); }

  void path_tested(SessionEpoch session, const Status& result) noexcept override {
    std::lock_guard lock(mutex_);
    results_.emplace(session, result);
    changed_.notify_all();
  }
  void writes_completed(std::span<const WriteCompletion> completions) noexcept override {
    others.writes_completed(completions);
  }
  void writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept override {
    others.writes_quiet(session, tickets);
  }
  void writes_landed(std::span<const Landing> landings) noexcept override {
    others.writes_landed(landings);
  }
  void write_torn(const Landing& landing, std::string_view how) noexcept override {
    others.write_torn(landing, how);
  }
  void fence_done(GrantId grant) noexcept override { others.fence_done(grant); }
  void lane_failed(SessionEpoch session, Failure cause) noexcept override {
    others.lane_failed(session, std::move(cause));
  }
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override {
    others.session_unreachable(session, std::move(cause));
  }
  void session_torn_down(SessionEpoch) noexcept override {}
  void regions_released() noexcept override {
    std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

  std::atomic<std::uint64_t> clock{0};
  RecordingSink others{clock};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SessionEpoch, Status> results_;
  bool released_ = false;
};

// Two processes' worth of transports, in one.
class PathTestSuite : public testing::TestWithParam<std::string> {
 protected:
  void start(std::uint32_t write_timeout_ms = 60'000) {
    source = make(Role::kPrefill, source_sink, write_timeout_ms);
    target = make(Role::kDecode, target_sink, write_timeout_ms);
    ASSERT_TRUE(source->register_regions(source_pool.regions()));
    ASSERT_TRUE(target->register_regions(target_pool.regions()));
  }
  void open() {
    ASSERT_TRUE(target->open_session(link(Role::kDecode, source->local_blob())));
    ASSERT_TRUE(source->open_session(link(Role::kPrefill, target->local_blob())));
  }
  void TearDown() override {
    if (source) source->stop();
    if (target) target->stop();
  }

  std::unique_ptr<Transport> make(Role role, CompletionSink& sink,
                                  std::uint32_t write_timeout_ms) const {
    TransportConfig config;
    config.role = role;
    config.max_grant_slots = kSlots;
    config.write_timeout_ms = write_timeout_ms;
    auto made = make_tested_transport(
        [this](const TransportConfig& inner,
               CompletionSink& inner_sink) -> Result<std::unique_ptr<Transport>> {
          if (GetParam() == "memory") {
            return std::make_unique<MemoryTransport>(inner, inner_sink, fabric);
          }
          return make_transport(GetParam(), inner, inner_sink);
        },
        config, sink);
    EXPECT_TRUE(made) << made.error().what;
    return std::move(*made);
  }
  static SessionLink link(Role role, std::vector<std::uint8_t> peer_blob) {
    SessionLink session;
    session.epoch = kSession;
    session.local_role = role;
    session.peer_blob = std::move(peer_blob);
    session.peer_item_bytes.assign(kSimple.regions, kSimple.item_bytes);
    session.peer_item_counts.assign(kSimple.regions, kSimple.items);
    return session;
  }

  std::shared_ptr<MemoryFabric> fabric = std::make_shared<MemoryFabric>();
  Sink source_sink;
  Sink target_sink;
  Pool source_pool{kSimple, Pool::Backing::kShared};
  Pool target_pool{kSimple};
  std::unique_ptr<Transport> source;
  std::unique_ptr<Transport> target;
};

void expect_unseen(Sink& sink) {
  const RecordingSink::State seen = sink.others.snapshot();
  EXPECT_TRUE(seen.tickets.empty());
  EXPECT_TRUE(seen.landings.empty());
  EXPECT_TRUE(seen.torn.empty());
  EXPECT_TRUE(seen.fences.empty());
}

TEST_P(PathTestSuite, BothSidesLearnThatAPathWorks) {
  start();
  open();
  for (Sink* sink : {&source_sink, &target_sink}) {
    const auto result = sink->wait_result(kSession);
    ASSERT_TRUE(result.has_value());
    EXPECT_TRUE(result->has_value()) << result->error().what;
  }
  expect_unseen(source_sink);
  expect_unseen(target_sink);
}

TEST_P(PathTestSuite, ItTakesNoSlotOfTheCallers) {
  start();
  open();
  ASSERT_TRUE(target_sink.wait_result(kSession));
  const GrantId grant{5};
  const GrantSlot slot{kSlots - 1};
  const layout::ItemSlice whole{RegionId(0), 0, kSimple.item_bytes, 1, 0};
  target->open_grant(grant,
                     {SlotGrant{kSession, slot, Generation{1},
                                layout::GrantExtent({whole}, {PageIndex(3)}, {}, -1, {}, {})}});
  layout::Write write;
  write.ticket = TicketId{1};
  write.slot = slot;
  write.generation = Generation{1};
  write.source_region = RegionId(0);
  write.target_region = RegionId(0);
  write.target_item = 3;
  write.length = kSimple.item_bytes;
  source_pool.fill_pattern(9);
  source->post(kSession, std::span(&write, 1));
  ASSERT_TRUE(source_sink.others.wait_outcome(1));
  EXPECT_EQ(source_sink.others.outcome(1), layout::WriteOutcome::kLanded);
  target->fence(grant);
  EXPECT_TRUE(target_sink.wait_fence(grant));
  EXPECT_TRUE(std::ranges::equal(target_pool.item(0, 3), source_pool.item(0, 0)));
}

TEST_P(PathTestSuite, RegionsLeaveWhenOnlyTheTestUsedThem) {
  start();
  open();
  ASSERT_TRUE(source_sink.wait_result(kSession));
  ASSERT_TRUE(target_sink.wait_result(kSession));
  ASSERT_TRUE(target->unregister_regions(Unregister::kWhenUnused));
  EXPECT_TRUE(target_sink.wait_released());
  ASSERT_TRUE(source->unregister_regions(Unregister::kRefuseWhileUsed));
  EXPECT_TRUE(source_sink.wait_released());
}

TEST_P(PathTestSuite, ABlobOfAnotherKindIsRefused) {
  start();
  for (const std::vector<std::uint8_t>& blob :
       {std::vector<std::uint8_t>{}, std::vector<std::uint8_t>{1, 0},
        std::vector<std::uint8_t>(9)}) {
    const Status opened = source->open_session(link(Role::kPrefill, blob));
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, FailureCode::kMalformed);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, PathTestSuite, testing::Values("tcp", "shm", "memory"),
                         [](const auto& tested) { return tested.param; });

// Only the memory transport can be made to misbehave.
class BrokenPath : public PathTestSuite {};

TEST_P(BrokenPath, AnAlteredPageFailsTheTestAtTheTarget) {
  start();
  fabric->alter_copies(1);
  open();
  const auto result = target_sink.wait_result(kSession);
  ASSERT_TRUE(result.has_value());
  ASSERT_FALSE(result->has_value());
  EXPECT_EQ(result->error().code, FailureCode::kWriteTorn);
  EXPECT_NE(result->error().what.find("byte 0"), std::string::npos) << result->error().what;
}

TEST_P(BrokenPath, AWriteWithoutAnEndFailsTheTestAtTheSource) {
  start(50);
  fabric->hold_writes(true);
  open();
  const auto result = source_sink.wait_result(kSession);
  ASSERT_TRUE(result.has_value());
  ASSERT_FALSE(result->has_value());
  EXPECT_EQ(result->error().code, FailureCode::kWriteUnknown);
  source->close_session(kSession);
  target->close_session(kSession);
  ASSERT_TRUE(source->unregister_regions(Unregister::kWhenUnused));
  EXPECT_TRUE(source_sink.wait_released());
  expect_unseen(source_sink);
  expect_unseen(target_sink);
}

INSTANTIATE_TEST_SUITE_P(Transports, BrokenPath, testing::Values("memory"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace kvferry::data_plane
