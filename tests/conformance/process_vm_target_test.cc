// The target's side of process-vm: a closed session is torn down when its writer's process has
// ended, and by nothing else.
#include "data_plane/process_vm/process_vm_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recording_sink.h"

namespace kvferry::data_plane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// A process that does nothing until it is killed.
class Writer {
 public:
  Writer() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) {
        ::pause();
      }
    }
    name_ = *name_process(pid_);
  }
  ~Writer() { kill(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  const ProcessName& name() const { return name_; }
  // Ended, and not waited for: its number is still its own.
  void end() const { ::kill(pid_, SIGKILL); }
  void kill() {
    if (pid_ > 0) {
      end();
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }

 private:
  pid_t pid_;
  ProcessName name_;
};

class ProcessVmTargetTest : public ::testing::Test {
 protected:
  Status open(std::uint64_t epoch, const ProcessName& process) {
    SessionLink link;
    link.epoch = SessionEpoch(epoch);
    link.peer_blob = encode(ProcessBlob{process, {}});
    return target_.open_session(link);
  }
  std::vector<SessionEpoch> torn_down() { return sink_.snapshot().torn_down; }
  bool await_torn_down(std::size_t count) {
    return sink_.wait(
        [&](const RecordingSink::State& state) { return state.torn_down.size() >= count; });
  }

  std::atomic<std::uint64_t> clock_{0};
  RecordingSink sink_{clock_};
  ProcessVmTarget target_{TransportConfig{}, sink_};
};

TEST_F(ProcessVmTargetTest, AClosedSessionIsTornDownWhenItsProcessHasEnded) {
  Writer first;
  Writer second;
  ASSERT_TRUE(open(1, first.name()));
  ASSERT_TRUE(open(2, first.name()));
  ASSERT_TRUE(open(3, second.name()));
  for (const std::uint64_t epoch : {1, 2, 3}) {
    target_.close_session(SessionEpoch(epoch));
  }
  first.end();
  ASSERT_TRUE(await_torn_down(2));
  EXPECT_THAT(torn_down(), UnorderedElementsAre(SessionEpoch(1), SessionEpoch(2)))
      << "the other one lives";
  second.kill();
  ASSERT_TRUE(await_torn_down(3));
}

TEST_F(ProcessVmTargetTest, AnOpenSessionIsNotTornDownThoughItsProcessHasEnded) {
  Writer writer;
  Writer closed;
  ASSERT_TRUE(open(1, writer.name()));
  ASSERT_TRUE(open(2, closed.name()));
  writer.kill();
  // What is told of another session comes after any word of this one.
  target_.close_session(SessionEpoch(2));
  closed.kill();
  ASSERT_TRUE(await_torn_down(1));
  EXPECT_THAT(torn_down(), ElementsAre(SessionEpoch(2)));
  target_.close_session(SessionEpoch(1));
  ASSERT_TRUE(await_torn_down(2));
  target_.close_session(SessionEpoch(1));
}

TEST_F(ProcessVmTargetTest, WhoIsNotAnotherLivingProcessOpensNoSession) {
  Writer writer;
  const ProcessName gone = writer.name();
  writer.kill();
  EXPECT_FALSE(open(1, gone));
  const Status own = open(2, *name_process(::getpid()));
  ASSERT_FALSE(own);
  EXPECT_THAT(own.error().what, HasSubstr("is this one"));
  SessionLink link;
  link.peer_blob = {1, 2, 3};
  EXPECT_FALSE(target_.open_session(link));
}

TEST_F(ProcessVmTargetTest, WhatIsPostedIsRefused) {
  layout::Write write;
  write.ticket = TicketId(9);
  target_.post(SessionEpoch(1), {&write, 1});
  EXPECT_EQ(sink_.outcome(9), layout::WriteOutcome::kRefused);
}

}  // namespace
}  // namespace kvferry::data_plane
