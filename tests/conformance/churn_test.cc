// Sessions that come, write, lose their lanes, get them back and go leave nothing behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "process_state.h"
#include "rig.h"
#include "run_length.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;

class Churn : public testing::TestWithParam<Case> {
 protected:
  static Rig::Tuning tuning() {
    Rig::Tuning tuning;
    tuning.with_relay = true;
    return tuning;
  }
  Churn() : rig_(GetParam(), tuning()) {}

  // One life of a session. With a relay its lanes are cut in the midst of its writes.
  void live(std::uint64_t session) {
    rig_.open(session);
    rig_.grant(session, session, 0, 1, {0, 1, 2, 3});
    ASSERT_EQ(rig_.send(session, rig_.write(0, 1, 0, 0)), WriteOutcome::kLanded);
    const std::vector<Write> writes{rig_.write(0, 1, 0, 1), rig_.write(0, 1, 0, 2)};
    rig_.post(session, writes);
    if (GetParam().kind == Kind::kTcp) rig_.relay().cut();
    for (const Write& write : writes) {
      ASSERT_TRUE(rig_.source_sink().wait_outcome(write.ticket.value()));
    }
    ASSERT_NO_FATAL_FAILURE(land_one(session));
    ASSERT_TRUE(rig_.fence(session));
    rig_.close(session);
    rig_.source_sink().forget();
    rig_.target_sink().forget();
  }

  Rig rig_;

 private:
  // A write that the cut meets before its first byte is refused and may be posted anew.
  void land_one(std::uint64_t session) {
    WriteOutcome outcome = WriteOutcome::kRefused;
    for (int attempt = 0; attempt < 20 && outcome == WriteOutcome::kRefused; ++attempt) {
      outcome = rig_.send(session, rig_.write(0, 1, 0, 3));
    }
    // Torn by a cut that came late: the page is lost to this grant, the lane is not.
    EXPECT_NE(outcome, WriteOutcome::kRefused);
  }
};

TEST_P(Churn, SessionsLeaveNoDescriptorNoThreadAndNoMemory) {
  const std::uint64_t rounds = by_length(200, 10'000);
  ProcessState state;
  constexpr std::uint64_t kWarmUp = 10;
  for (std::uint64_t session = 1; session <= kWarmUp; ++session) {
    ASSERT_NO_FATAL_FAILURE(live(session));
  }
  state.warmed_up();
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    ASSERT_NO_FATAL_FAILURE(live(kWarmUp + i));
  }
  state.expect_unchanged();
}

// The control: whatever stays is seen.
TEST(ProcessState, SeesWhatStays) {
  std::thread([] {}).join();  // a sanitizer starts one of its own with the first
  const ProcessState state;
  EXPECT_EQ(state.difference(), "");
  {
    const Fd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(state.difference(), "descriptors ");
  }
  {
    std::promise<void> over;
    const auto thread = std::async(std::launch::async, [&] { over.get_future().wait(); });
    EXPECT_EQ(state.difference(), "threads ");
    over.set_value();
  }
  if (kMemoryIsKnown) {
    // Not from the allocator, which may have that much from before.
    constexpr std::size_t kBytes = 16U << 20;
    void* const kept =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(kept, MAP_FAILED);
    std::memset(kept, 1, kBytes);
    EXPECT_EQ(state.difference(), "memory ");
    ::munmap(kept, kBytes);
  }
  state.expect_unchanged();
}

std::vector<Case> simple_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& c) { return c.shape.regions != 1; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Churn, testing::ValuesIn(simple_cases()),
                         [](const auto& shown) { return case_name(shown.param); });

}  // namespace
}  // namespace kvferry::data_plane
