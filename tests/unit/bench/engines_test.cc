// Both ends of each engine in one process, over small pools: bytes are counted once and wrong bytes
// fail the run.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "bench/transfer/memcpy_engine.h"
#include "bench/transfer/pattern.h"
#include "bench/transfer/stream_engine.h"
#include "bench/transfer/transport_engine.h"
#include "data_plane/factory.h"
#include "kvferry/shared_pool.h"

namespace kvferry::bench {
namespace {

constexpr std::uint64_t kSmallPoolBytes = 32U << 20;

// Two pools and an engine between them.
class EngineRig {
 public:
  explicit EngineRig(const std::string& name)
      : shared_(SharedPool::create(kSmallPoolBytes + kAuxAreaBytes).value()),
        target_memory_(::mmap(nullptr, kSmallPoolBytes + kAuxAreaBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        channels_(Channel::make_pair().value()) {
    fill_pattern(source_bytes(), 0);
    WorkerSetup setup;
    std::strcpy(setup.host.data(), "127.0.0.1");
    const Pool source{shared_.base(), kSmallPoolBytes, shared_.fd(), nullptr};
    const Pool target{static_cast<std::byte*>(target_memory_), kSmallPoolBytes, -1, shared_.base()};
    if (name == kMemcpyName) {
      source_ = make_memcpy_source();
      target_ = make_memcpy_target(target);
    } else if (name == kStreamName) {
      source_ = make_stream_source(setup, source);
      target_ = make_stream_target(setup, target);
    } else {
      source_ = make_transport_source(name, setup, source);
      target_ = make_transport_target(name, setup, target);
    }
  }
  ~EngineRig() {
    source_.reset();
    target_.reset();
    ::munmap(target_memory_, kSmallPoolBytes + kAuxAreaBytes);
  }

  std::span<std::byte> source_bytes() { return {shared_.base(), kSmallPoolBytes + kAuxAreaBytes}; }

  std::byte* target_bytes() { return static_cast<std::byte*>(target_memory_); }

  Status prepare(const std::string& block_name, std::uint32_t pages_per_grant = 0) {
    const Block block = make_block(block_name, kSmallPoolBytes, pages_per_grant).value();
    Status at_source;
    std::thread thread([&] { at_source = source_->prepare(block, channels_.first); });
    Status at_target = target_->prepare(block, channels_.second);
    thread.join();
    return at_source ? at_target : at_source;
  }

  struct Ends {
    Result<PostResult> source;
    Result<RunResult> target;
  };
  // Every page at least once.
  Ends run(std::uint32_t batch = 0) { return run({milliseconds(1), kSmallPoolBytes, batch}); }
  Ends run(const RunOrder& order) {
    Ends ends{PostResult{}, RunResult{}};
    std::thread thread([&] { ends.source = source_->run(order, channels_.first); });
    ends.target = target_->run(order, channels_.second);
    thread.join();
    return ends;
  }

 private:
  SharedPool shared_;
  void* target_memory_;
  std::pair<Channel, Channel> channels_;
  std::unique_ptr<SourceEngine> source_;
  std::unique_ptr<TargetEngine> target_;
};

class Engines : public testing::TestWithParam<std::string> {};

TEST_P(Engines, MoveEveryBlockOfEveryKind) {
  EngineRig rig(GetParam());
  for (const char* block : {"64K", "kv-mix", "1M"}) {
    const Status ready = rig.prepare(block);
    ASSERT_TRUE(ready) << block << ": " << ready.error().what;
    for (int turn = 0; turn < 2; ++turn) {
      const auto ends = rig.run();
      ASSERT_TRUE(ends.target) << block << ": " << ends.target.error().what;
      EXPECT_TRUE(ends.source) << block << ": " << ends.source.error().what;
      EXPECT_GE(ends.target->total_bytes, kSmallPoolBytes);
      EXPECT_GT(ends.target->checked_pages, 0U);
    }
  }
}

// The control of the check: one wrong word in each source page is seen.
TEST_P(Engines, WrongBytesFailTheRun) {
  EngineRig rig(GetParam());
  ASSERT_TRUE(rig.prepare("64K"));
  for (std::uint64_t at = 4096; at < kSmallPoolBytes; at += 64U << 10) {
    rig.source_bytes()[at] ^= std::byte{1};
  }
  const auto ends = rig.run();
  ASSERT_FALSE(ends.target);
  EXPECT_NE(ends.target.error().what.find("does not hold"), std::string::npos)
      << ends.target.error().what;
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names = {std::string(kMemcpyName), std::string(kStreamName)};
  for (const std::string_view name : data_plane::transport_names()) names.emplace_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Engines, testing::ValuesIn(engine_names()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class FencedRuns : public testing::TestWithParam<std::string> {
 protected:
  static constexpr std::uint64_t kReleases = 200;
  static RunOrder order() {
    return {Duration(0), kSmallPoolBytes, 0, RunMode::kFenceCheck, kReleases};
  }
};

TEST_P(FencedRuns, StaleWritesAreRefusedAndReleasedPagesStayUntouched) {
  EngineRig rig(GetParam());
  ASSERT_TRUE(rig.prepare("64K", 4));
  const auto ends = rig.run(order());
  ASSERT_TRUE(ends.target) << ends.target.error().what;
  ASSERT_TRUE(ends.source) << ends.source.error().what;
  EXPECT_GE(ends.target->releases, kReleases);
  EXPECT_EQ(ends.target->late_pages, 0U);
  EXPECT_GT(ends.target->release_max, Duration(0));
  EXPECT_GE(ends.source->refused + ends.source->unknown, kReleases);
  // The session goes on as before.
  EXPECT_TRUE(rig.run().target);
}

// The control: somebody who writes into released pages is seen.
TEST_P(FencedRuns, AWriterThatIgnoresTheFenceIsSeen) {
  EngineRig rig(GetParam());
  ASSERT_TRUE(rig.prepare("64K", 4));
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    // Past the compiler and past thread checkers, as another process would.
    const data_plane::Fd memory(::open("/proc/self/mem", O_WRONLY));
    const std::byte wrong{0x11};
    while (!is_over) {
      for (std::uint64_t at = 0; at < kSmallPoolBytes && !is_over; at += 64U << 10) {
        const auto address = reinterpret_cast<std::uintptr_t>(rig.target_bytes() + at);
        if (::pwrite(memory.get(), &wrong, 1, static_cast<off_t>(address)) != 1) return;
      }
    }
  });
  const auto ends = rig.run(order());
  is_over = true;
  writer.join();
  ASSERT_TRUE(ends.target) << ends.target.error().what;
  EXPECT_GT(ends.target->late_pages, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, FencedRuns, testing::Values("shm", "tcp"));

TEST(TransportEngine, OneWritePerPostLandsAlike) {
  EngineRig rig("tcp");
  ASSERT_TRUE(rig.prepare("64K"));
  const auto ends = rig.run(1);
  ASSERT_TRUE(ends.target) << ends.target.error().what;
  EXPECT_TRUE(ends.source);
}

}  // namespace
}  // namespace kvferry::bench
