#include "data_plane/lanes/event_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>

#include "base/clock.h"
#include "support/await.h"

namespace kvferry::data_plane {
namespace {

constexpr Duration kForEver = std::chrono::hours(1);

// A loop that reads an event descriptor, and keeps itself awake after each read if told to.
class LoopTest : public testing::Test, public EventLoop::Handler {
 protected:
  void start(Duration poll, bool stays_awake) {
    stays_awake_ = stays_awake;
    ASSERT_TRUE(loop_.open(
        {kForEver, poll}, [](Instant) {}, place_));
    event_ = Fd(::eventfd(0, EFD_NONBLOCK));
    ASSERT_TRUE(event_.is_open());
    loop_.add(event_.get(), EPOLLIN, this);
    loop_.start();
  }
  ~LoopTest() override { loop_.stop(); }

  void on_ready(std::uint32_t) override {
    clear_event(event_);
    reads_.fetch_add(1);
    if (stays_awake_) loop_.stay_awake();
  }
  bool read_is_seen(int reads) {
    raise_event(event_);
    return test::await([&] { return reads_.load() == reads; });
  }
  bool sleeps() const { return !place_->is_working(); }

  ThreadPlacePtr place_ = enrol(nullptr, "loop", "this test");
  EventLoop loop_;
  Fd event_;
  std::atomic<int> reads_{0};
  bool stays_awake_ = false;
};

TEST_F(LoopTest, PollsAfterWorkThatAsksForIt) {
  start(kForEver, true);
  ASSERT_TRUE(test::await([&] { return sleeps(); })) << "nothing has asked yet";
  ASSERT_TRUE(read_is_seen(1));
  ASSERT_TRUE(test::await([&] { return !sleeps(); }));
  ASSERT_TRUE(read_is_seen(2));
  EXPECT_FALSE(sleeps());
  loop_.stop();  // ends at once, though it polls
}

// A thread that is at one turn for too long is taken for dead.
TEST_F(LoopTest, EachTurnIsOneOfItsOwnWhileItPolls) {
  start(kForEver, true);
  ASSERT_TRUE(read_is_seen(1));
  ASSERT_TRUE(test::await([&] { return !sleeps(); }));
  const std::uint64_t before = place_->turn();
  ASSERT_TRUE(read_is_seen(2));
  EXPECT_GT(place_->turn(), before);
}

TEST_F(LoopTest, SleepsAtOnceAfterOtherWork) {
  start(kForEver, false);
  ASSERT_TRUE(read_is_seen(1));
  EXPECT_TRUE(test::await([&] { return sleeps(); }));
}

TEST_F(LoopTest, SleepsAtOnceWithoutAPollTime) {
  start(Duration{}, true);
  ASSERT_TRUE(read_is_seen(1));
  EXPECT_TRUE(test::await([&] { return sleeps(); }));
}

TEST_F(LoopTest, SleepsWhenThePollTimeIsOver) {
  start(std::chrono::microseconds(1), true);
  ASSERT_TRUE(read_is_seen(1));
  EXPECT_TRUE(test::await([&] { return sleeps(); }));
}

TEST_F(LoopTest, TakesTasksWhileItPolls) {
  start(kForEver, true);
  ASSERT_TRUE(read_is_seen(1));
  std::promise<void> ran;
  loop_.post([&] { ran.set_value(); });
  EXPECT_EQ(ran.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

}  // namespace
}  // namespace kvferry::data_plane
