// The driver with a protocol, a link and a transport that do what a test says.
#include "runtime/driver.h"
#include "runtime/bootstrap_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <stdexcept>

#include "base/clock.h"
#include "support/await.h"

namespace kvferry::runtime {
namespace {

using testing::HasSubstr;

class FakeLink final : public net::ControlLink {
 public:
  std::string endpoint() const override { return "127.0.0.1:1"; }
  Status dial(PeerId, const PeerAddress&) override {
    return fail(FailureCode::kOperatingSystem, "no socket");
  }
  void hang_up(PeerId) override {}
  net::LinkSend send(PeerId, std::vector<std::uint8_t>, net::LinkPriority) override {
    return net::LinkSend::kQueued;
  }
  void wait(Duration timeout, int wake_fd, std::vector<net::LinkEvent>& events,
            std::size_t) override {
    pollfd entry{wake_fd, POLLIN, 0};
    ::poll(&entry, wake_fd < 0 ? 0 : 1, static_cast<int>(timeout / milliseconds(1)) + 1);
    std::lock_guard lock(mutex);
    for (net::LinkEvent& event : queued) {
      events.push_back(std::move(event));
    }
    queued.clear();
  }
  std::mutex mutex;
  std::vector<net::LinkEvent> queued;
};

class FakeTransport final : public data_plane::Transport {
 public:
  data_plane::TransportProperties properties() const override {
    return {"fake", true, true, false};
  }
  std::vector<std::uint8_t> local_blob() const override { return {}; }
  Status register_regions(std::span<const Region>) override { return {}; }
  Status unregister_regions(data_plane::Unregister) override { return {}; }
  Status open_session(const data_plane::SessionLink&) override { return {}; }
  void close_session(SessionEpoch) override {}
  void open_grant(GrantId, std::vector<data_plane::SlotGrant>) override {}
  void fence(GrantId) override {}
  void post(SessionEpoch, std::span<const layout::Write>) override {}
  void give_up(SessionEpoch, GrantSlot, Generation) override {}
  void stop() override {}
};

class FakeProtocol final : public core::Protocol {
 public:
  void step(Instant now, std::span<core::Event> events, core::ActionSink& sink) override {
    std::lock_guard lock(mutex);
    gaps.push_back(now - last);
    last = now;
    for (const core::Event& event : events) {
      seen.push_back(event.index());
      if (const auto* opened = std::get_if<core::SenderOpened>(&event); opened != nullptr) {
        on_open(opened->sender.value(), sink);
      }
      stopped = stopped || std::holds_alternative<core::StopRequested>(event);
    }
  }
  Instant next_deadline() const override { return Instant::max(); }
  core::Snapshot snapshot(Instant, std::size_t) const override {
    core::Snapshot snapshot;
    snapshot.grants = busy ? 1 : 0;
    snapshot.room_count = 7;
    if (stopped && !busy) {
      snapshot.room_count = 0;
    }
    return snapshot;
  }
  std::vector<std::string> check_invariants() const override { return broken; }

  bool has_seen(std::size_t index) {
    std::lock_guard lock(mutex);
    return std::find(seen.begin(), seen.end(), index) != seen.end();
  }

  std::function<void(std::uint64_t, core::ActionSink&)> on_open = [](auto, auto&) {};
  std::vector<std::string> broken;
  bool busy = false;  // something that never ends
  std::mutex mutex;
  std::vector<std::size_t> seen;
  std::vector<Duration> gaps;
  Instant last{};
  std::atomic<bool> stopped{false};
};

template <typename Kind>
constexpr std::size_t index_of() {
  return core::Event(Kind{}).index();
}

class DriverTest : public testing::Test {
 protected:
  DriverTest() {
    args_.regions.push_back(
        {RegionKind::kAux, 0, aux_memory_, kAuxRecordBytes, 1, MemoryKind::kHost});
    aux_ = std::make_unique<AuxSlots>(args_);
    releases_ = std::make_unique<ReleaseQueue>(std::move(*EventFd::make()));
    mailbox_ = std::move(*Mailbox::make(100));
    tokens_ = std::move(*ClusterTokens::load(""));
    bootstrap_ = std::make_unique<BootstrapClient>(options_, core::RegistryRow{}, *tokens_, keys_,
                                                   *mailbox_);
  }
  ~DriverTest() override { stop(); }

  void start() {
    driver_ = std::make_unique<Driver>(
        Driver::Parts{options_, protocol_, link_, *mailbox_, table_, *releases_, *bootstrap_,
                      place_},
        DriverSink::Parts{table_, *releases_, *bootstrap_, link_, transport_, *aux_});
    ASSERT_TRUE(driver_->start());
  }
  void stop(Duration limit = std::chrono::seconds(20)) {
    if (driver_ != nullptr) {
      driver_->request_stop(Failure{FailureCode::kShuttingDown, FailureWhere::kLocal, "", {}, -1},
                            monotonic_now() + limit);
      driver_->join();
    }
  }
  std::shared_ptr<StatusCell> open_sender() {
    auto cell = table_.open(HandleKind::kSender, RoomId(1), Binding{});
    EXPECT_TRUE(mailbox_->push(core::SenderOpened{SenderId(cell->id), RoomId(1), Binding{}}));
    return cell;
  }
  void arrive(net::LinkEvent event) {
    {
      std::lock_guard lock(link_.mutex);
      link_.queued.push_back(std::move(event));
    }
    mailbox_->wake();
  }

  Options options_;
  KvArgs args_;
  std::byte aux_memory_[kAuxRecordBytes]{};
  StatusTable table_{16};
  KeyDirectory keys_{std::chrono::seconds(1)};
  std::unique_ptr<AuxSlots> aux_;
  std::unique_ptr<ReleaseQueue> releases_;
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<ClusterTokens> tokens_;
  std::unique_ptr<BootstrapClient> bootstrap_;
  FakeLink link_;
  FakeTransport transport_;
  FakeProtocol protocol_;
  ThreadRoster threads_;
  ThreadPlacePtr place_ = threads_.enrol("kvf-driver", "runs the protocol");
  std::unique_ptr<Driver> driver_;
};

TEST_F(DriverTest, AnEscapedExceptionFailsEveryRoomAndShows) {
  protocol_.on_open = [](std::uint64_t, core::ActionSink&) {
    throw std::runtime_error("a bug of its own");
  };
  start();
  EXPECT_EQ(place_->cause(), "");
  const auto bystander = table_.open(HandleKind::kSender, RoomId(2), Binding{});
  const auto cell = open_sender();
  ASSERT_TRUE(test::await([&] { return cell->load() == KvPoll::kFailed; }));
  EXPECT_EQ(cell->failure()->code, FailureCode::kControlThreadDead);
  EXPECT_THAT(cell->failure()->what, HasSubstr("a bug of its own"));
  ASSERT_TRUE(test::await([&] { return bystander->load() == KvPoll::kFailed; }));
  ASSERT_TRUE(test::await([&] { return place_->has_ended(); }));
  EXPECT_THAT(place_->cause(), HasSubstr("a bug of its own"));
  EXPECT_EQ(mailbox_->push(core::SenderCleared{}).error().code, FailureCode::kControlThreadDead);
}

TEST_F(DriverTest, ACondemnedOneEndsAtItsNextTurn) {
  start();
  const auto cell = open_sender();
  driver_->condemn("thread kvf-send (writes to peers) ended: no memory");
  ASSERT_TRUE(test::await([&] { return cell->load() == KvPoll::kFailed; }));
  EXPECT_EQ(cell->failure()->code, FailureCode::kControlThreadDead);
  EXPECT_THAT(cell->failure()->what, HasSubstr("kvf-send"));
  ASSERT_TRUE(test::await([&] { return place_->has_ended(); }));
  EXPECT_THAT(place_->cause(), HasSubstr("no memory"));
}

TEST_F(DriverTest, ActionsReachCellsAndCallers) {
  protocol_.on_open = [](std::uint64_t owner, core::ActionSink& sink) {
    sink.publish_prefix(SenderId(owner), 3);
    sink.publish_landed_bytes(SenderId(owner), 4'096);
    sink.publish_status(owner, KvPoll::kTransferring);
    EXPECT_TRUE(sink.publish_terminal(owner, KvPoll::kSuccess, std::nullopt));
    EXPECT_FALSE(sink.publish_terminal(owner, KvPoll::kFailed, Failure{}));
    EXPECT_FALSE(sink.publish_terminal(owner + 1, KvPoll::kSuccess, std::nullopt));
    sink.release_pages({owner, RoomId(1), Binding{}, {PageIndex(5)}, 2, {}});
    sink.count("stale_messages", 2);
    sink.count("stale_messages", 1);
    EXPECT_FALSE(sink.inspect_aux(0, RoomId(1), Binding{}));
    EXPECT_FALSE(sink.inspect_aux(9, RoomId(1), Binding{}));
    core::OpenDataSession other;
    other.transport = "another";
    EXPECT_FALSE(sink.open_data_session(other));
  };
  start();
  EXPECT_EQ(table_.changes().take(), std::nullopt) << "nothing was noted before";
  const auto cell = open_sender();
  pollfd entry{releases_->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
  releases_->lower();
  EXPECT_EQ(::poll(&entry, 1, 0), 1);  // pages wait
  EXPECT_EQ(releases_->take().size(), 1U);
  releases_->lower();
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_EQ(table_.changes().take(), (std::vector<std::uint64_t>{cell->id, cell->id}));
  EXPECT_EQ(cell->load(), KvPoll::kSuccess);
  EXPECT_EQ(cell->prefix_pages, 3U);
  EXPECT_EQ(cell->landed_bytes, 4'096U);
  EXPECT_TRUE(test::await([&] {
    const auto view = driver_->view();
    return view->snapshot.room_count == 7 && view->counters.contains("stale_messages") &&
           view->counters.at("stale_messages") == 3;
  }));
}

TEST_F(DriverTest, ADialThatFailsIsALostLink) {
  protocol_.on_open = [](std::uint64_t, core::ActionSink& sink) {
    sink.dial_peer({PeerId(1), {"nowhere:1", ""}});
  };
  start();
  open_sender();
  EXPECT_TRUE(test::await([&] { return protocol_.has_seen(index_of<core::LinkDown>()); }));
}

TEST_F(DriverTest, PeersNonsenseIsCountedAndDropped) {
  start();
  arrive(net::LinkFrame{"", {1, 2, 3}});
  arrive(net::LinkFrame{"", {}});
  arrive(net::LinkMalformed{"two frames"});
  arrive(net::LinkStranger{"key"});
  arrive(net::LinkConnected{PeerId(1)});
  ASSERT_TRUE(test::await([&] { return protocol_.has_seen(index_of<core::LinkUp>()); }));
  EXPECT_TRUE(test::await([&] {
    const auto view = driver_->view();
    std::uint64_t frames = 0;
    for (const std::uint64_t count : view->malformed_frames) {
      frames += count;
    }
    return frames == 2 && view->malformed_messages == 1 && view->strangers_refused == 1;
  }));
  EXPECT_FALSE(protocol_.has_seen(index_of<core::FrameArrived>()));
}

TEST_F(DriverTest, APlaceIsFreeOnceTheEndOfItsHandleWasSeen) {
  start();
  const auto cell = open_sender();
  ASSERT_TRUE(test::await([&] { return protocol_.has_seen(index_of<core::SenderOpened>()); }));
  cell->clear(Failure{});
  EXPECT_EQ(table_.open_handles(), 1U);
  EXPECT_TRUE(mailbox_->push_reserved(core::SenderCleared{SenderId(cell->id)}));
  EXPECT_TRUE(test::await([&] { return table_.open_handles() == 0; }));
}

TEST_F(DriverTest, WaitingIsNoPause) {
  options_.pause_threshold_ms = 100;
  start();
  ASSERT_TRUE(test::await([&] {
    std::lock_guard lock(protocol_.mutex);
    return protocol_.gaps.size() > 10;
  }));
  stop();
  // On a machine that itself pauses there are some; an idle driver must not make one of each turn.
  const auto& counters = driver_->view()->counters;
  const auto pauses = counters.find("pauses");
  std::lock_guard lock(protocol_.mutex);
  EXPECT_LT(pauses == counters.end() ? 0 : pauses->second, protocol_.gaps.size() / 2);
}

TEST_F(DriverTest, BrokenInvariantsAreShown) {
  protocol_.broken = {"S1: a page is in two grants"};
  start();
  EXPECT_TRUE(test::await([&] { return driver_->view()->broken_invariants.size() == 1; }));
}

TEST_F(DriverTest, StopEndsAtItsDeadlineWhateverIsOpen) {
  protocol_.busy = true;
  start();
  const auto cell = open_sender();
  stop(milliseconds(50));
  EXPECT_EQ(cell->load(), KvPoll::kFailed);
  EXPECT_EQ(cell->failure()->code, FailureCode::kShuttingDown);
  EXPECT_FALSE(mailbox_->push(core::SenderCleared{}));
}

TEST_F(DriverTest, StopEndsEarlyOnceAllIsQuiet) {
  start();
  const auto cell = open_sender();
  stop(std::chrono::hours(1));  // else the test's own limit ends it
  EXPECT_EQ(cell->load(), KvPoll::kFailed);
}

}  // namespace
}  // namespace kvferry::runtime
