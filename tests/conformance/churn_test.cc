// Sessions that come, write, lose their lanes, get them back and go leave nothing behind.
#include <gtest/gtest.h>

#include "process_state.h"
#include "rig.h"
#include "run_length.h"

namespace kvferry::data_plane {
namespace {

using layout::Write;
using layout::WriteOutcome;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsKnown = false;  // sanitizers keep what was freed
#else
constexpr bool kMemoryIsKnown = true;
#endif

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
  const std::size_t files = open_files();
  const std::size_t running = threads();
  // Memory that is taken once and kept is taken by the first lives.
  constexpr std::uint64_t kWarmUp = 10;
  for (std::uint64_t session = 1; session <= kWarmUp; ++session) {
    ASSERT_NO_FATAL_FAILURE(live(session));
  }
  const std::uint64_t memory = resident_bytes();
  for (std::uint64_t i = 1; i <= rounds; ++i) {
    ASSERT_NO_FATAL_FAILURE(live(kWarmUp + i));
  }
  EXPECT_TRUE(comes_to(open_files, files)) << open_files() << " instead of " << files;
  EXPECT_TRUE(comes_to(threads, running)) << threads() << " instead of " << running;
  // The recording of each ticket is the test's own; a session that stayed would be far more.
  const std::uint64_t allowed = (8U << 20) + rounds * 4'096;
  EXPECT_LT(kMemoryIsKnown ? resident_bytes() : 0, memory + allowed);
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
