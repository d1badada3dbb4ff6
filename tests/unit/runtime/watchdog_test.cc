#include "runtime/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stop_token>

#include "support/await.h"

namespace kvferry::runtime {
namespace {

using testing::HasSubstr;

constexpr Duration kDeadAfter = milliseconds(20);

class WatchdogTest : public testing::Test {
 protected:
  void start() { ASSERT_TRUE(watchdog_.start()); }
  std::string verdict() { return told_.get_future().get(); }
  // Until the watchdog has looked `looks` times more.
  bool await_looks(std::uint64_t looks) {
    const std::uint64_t until = own_place()->turn() + 2 * looks;
    return test::await([&] { return own_place()->turn() >= until; });
  }
  ThreadPlacePtr own_place() { return threads_.places().front(); }

  ThreadRoster threads_;
  std::promise<std::string> told_;
  std::atomic<int> verdicts_{0};
  Watchdog watchdog_{threads_, kDeadAfter, [this](const std::string& why) {
                       ++verdicts_;
                       told_.set_value(why);
                     }};
};

TEST_F(WatchdogTest, AThreadThatEndedUnbiddenIsTold) {
  threads_.enrol("kvf-send", "writes to peers")->ends("no memory");
  start();
  EXPECT_EQ(verdict(), "thread kvf-send (writes to peers) ended: no memory");
}

TEST_F(WatchdogTest, AThreadAtOneTurnForTooLongIsTakenForDead) {
  threads_.enrol("kvf-driver", "runs the protocol")->works();
  start();
  EXPECT_THAT(verdict(), HasSubstr("thread kvf-driver (runs the protocol) is taken for dead"));
}

TEST_F(WatchdogTest, TurnsWaitsAndOrderedEndsAreNoDeath) {
  const ThreadPlacePtr busy = threads_.enrol("kvf-driver", "runs the protocol");
  std::jthread turning([&busy](const std::stop_token& stop) {
    while (!stop.stop_requested()) busy->works();
  });
  threads_.enrol("kvf-send", "writes to peers")->waits();
  threads_.enrol("kvf-fence", "fences")->ends({});
  start();
  EXPECT_TRUE(await_looks(30));
  turning.request_stop();
  busy->waits();
  EXPECT_EQ(verdicts_, 0);
}

TEST_F(WatchdogTest, WhatCanBeReplacedIsLeftToItsOwner) {
  threads_.enrol("kvf-bootstrap", "asks a registry", ThreadPlace::Need::kReplaceable)
      ->ends("no memory");
  start();
  EXPECT_TRUE(await_looks(10));
  EXPECT_EQ(verdicts_, 0);
}

}  // namespace
}  // namespace kvferry::runtime
