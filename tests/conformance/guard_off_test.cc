// What the receiver's check is for: with it missing, the very run that finds no late byte with it
// finds some, over every transport. Linked to the lab's build of the data plane.
#include <gtest/gtest.h>

#include "base/runtime_guards.h"
#include "endless_writer.h"
#include "rig.h"
#include "stale_writes.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint64_t kSession = 13;
constexpr std::uint64_t kReleases = 400;

class ReceiveCheck : public testing::TestWithParam<Case> {
 protected:
  void TearDown() override { missing_runtime_guard = RuntimeGuard::kNone; }

  static std::optional<std::uint64_t> late_pages_of_a_run(const Case& c) {
    Rig::Tuning tuning;
    tuning.frame_bytes = 32U << 10;
    Rig rig(c, tuning);
    rig.open(kSession);
    EndlessWriter writer(rig, kSession);
    return late_pages(rig, kSession, kReleases, [&](std::uint32_t slot, std::uint64_t generation) {
      writer.set_generation(slot, generation);
    });
  }
};

TEST_P(ReceiveCheck, KeepsLateBytesOut) {
  const auto with_it = late_pages_of_a_run(GetParam());
  ASSERT_TRUE(with_it);
  EXPECT_EQ(*with_it, 0U);
  missing_runtime_guard = RuntimeGuard::kReceiveCheck;
  const auto without_it = late_pages_of_a_run(GetParam());
  ASSERT_TRUE(without_it);
  EXPECT_GT(*without_it, 0U) << "of " << kReleases << " releases";
}

// Of "completed means applied": what is refused to an address that was freed and registered again
// is the old grant's, and it is this check that knows.
TEST_P(ReceiveCheck, KeepsAnOldGrantFromMemoryThatIsRegisteredAgain) {
  for (const bool is_missing : {false, true}) {
    if (is_missing) missing_runtime_guard = RuntimeGuard::kReceiveCheck;
    Rig rig(GetParam());
    rig.open(kSession);
    rig.grant(1, kSession, 0, 1, {0, 1});
    ASSERT_EQ(rig.send(kSession, rig.write(0, 1, 0, 0)), layout::WriteOutcome::kLanded);
    ASSERT_TRUE(rig.fence(1));
    ASSERT_TRUE(rig.target().unregister_regions(Unregister::kRefuseWhileUsed));
    ASSERT_TRUE(rig.target().register_regions(rig.target_pool().regions()));
    rig.send(kSession, rig.write(0, 1, 0, 1));
    EXPECT_EQ(rig.item_is(0, 1, kCanary), !is_missing);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReceiveCheck, testing::ValuesIn(all_cases()),
                         [](const auto& shown) { return case_name(shown.param); });

}  // namespace
}  // namespace kvferry::data_plane
