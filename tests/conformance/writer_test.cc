// A writer in another process that is killed, stopped and resumed in the midst of its writes. The
// same outcomes over every transport that joins processes.
#include <gtest/gtest.h>

#include <algorithm>

#include "run_length.h"
#include "stale_writes.h"
#include "writer_process.h"

namespace kvferry::data_plane {
namespace {

constexpr std::uint64_t kSession = 31;
constexpr std::uint32_t kSlots = StaleWrites::kSlots;
constexpr std::byte kMine{0x11};

class ForeignWriter : public testing::TestWithParam<Case> {
 protected:
  ForeignWriter() : rig_(GetParam()) {}

  std::unique_ptr<WriterProcess> start(std::uint64_t session) {
    auto writer = std::make_unique<WriterProcess>(GetParam());
    SessionLink link;
    link.epoch = SessionEpoch(session);
    link.local_role = Role::kDecode;
    const auto secret = rig_.secret(session);
    std::copy(secret.begin(), secret.end(), link.secret.begin());
    link.peer_blob = writer->blob();
    EXPECT_TRUE(rig_.target().open_session(link));
    EXPECT_TRUE(writer->connect(link, rig_.target().local_blob()));
    return writer;
  }
  // Opens a grant of page n in each slot n, tells the writer and waits for so many landings.
  void grant_all(WriterProcess& writer, std::uint64_t session, std::uint64_t generation,
                 std::size_t landings) {
    const std::size_t before = landings_now();
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      rig_.grant(grant_of(generation, slot), session, slot, generation, {slot});
      writer.set_generation(slot, generation);
    }
    ASSERT_TRUE(rig_.target_sink().wait(
        [&](const auto& state) { return state.landings.size() >= before + landings; }));
  }
  // Fences all slots and makes the pages the test's own.
  void fence_all(std::uint64_t generation) {
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      ASSERT_TRUE(rig_.fence(grant_of(generation, slot)));
    }
    rig_.target_pool().fill(kMine);
  }
  void expect_pages_are_mine() {
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
      for (std::uint32_t region = 0; region < rig_.shape().regions; ++region) {
        EXPECT_TRUE(rig_.item_is(region, slot, kMine)) << "page " << slot;
      }
    }
  }
  std::size_t landings_now() { return rig_.target_sink().snapshot().landings.size(); }
  std::size_t lane_failures_now() { return rig_.target_sink().snapshot().lane_failures.size(); }
  static std::uint64_t grant_of(std::uint64_t generation, std::uint32_t slot) {
    return generation * kSlots + slot;
  }

  Rig rig_;
};

TEST_P(ForeignWriter, KilledItLeavesGrantsThatCanBeFenced) {
  const std::uint64_t rounds = by_length(5, 200);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::uint64_t session = kSession + round;
    const auto writer = start(session);
    ASSERT_NO_FATAL_FAILURE(grant_all(*writer, session, round, round % 20 + 1));
    const std::size_t failures = lane_failures_now();
    writer->kill_now();
    ASSERT_NO_FATAL_FAILURE(fence_all(round));
    ASSERT_TRUE(rig_.target_sink().wait([&](const auto& state) {
      return state.lane_failures.size() > failures;
    })) << "its death was not noticed";
    rig_.target().close_session(SessionEpoch(session));
    expect_pages_are_mine();
  }
}

TEST_P(ForeignWriter, StoppedItHoldsNoFenceAndResumedItLandsNothing) {
  const auto writer = start(kSession);
  const std::uint64_t rounds = by_length(8, 200);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    ASSERT_NO_FATAL_FAILURE(grant_all(*writer, kSession, round, round % 20 + 1));
    writer->stop_now();
    ASSERT_NO_FATAL_FAILURE(fence_all(round));
    writer->resume();
    const auto resumed = writer->flush();
    ASSERT_TRUE(resumed);
    // Counted here, since a copy that ended before its fence may be reported after it. Its bytes
    // are then overwritten by the test's own; none comes later.
    const std::size_t landings = landings_now();
    // What it posts from here on, it posts under grants that are over.
    const auto later = writer->flush();
    ASSERT_TRUE(later);
    EXPECT_GT(later->posted, resumed->posted);
    EXPECT_EQ(later->refused - resumed->refused, later->posted - resumed->posted);
    EXPECT_EQ(later->landed, resumed->landed);
    EXPECT_EQ(later->landed + later->refused + later->unknown, later->posted);
    EXPECT_EQ(later->quiet, later->unknown);
    EXPECT_EQ(later->repeated, 0U) << "an outcome or quiet that came twice";
    EXPECT_EQ(landings_now(), landings) << "a landing after its fence";
    expect_pages_are_mine();
  }
  EXPECT_EQ(lane_failures_now(), 0U);
}

TEST_P(ForeignWriter, AtFullSpeedItLandsNoLateByte) {
  const auto writer = start(kSession);
  const auto late = late_pages(rig_, kSession, by_length(200, 20'000),
                               [&](std::uint32_t slot, std::uint64_t generation) {
                                 writer->set_generation(slot, generation);
                               });
  ASSERT_TRUE(late);
  EXPECT_EQ(*late, 0U);
  const auto end = writer->flush();
  ASSERT_TRUE(end);
  EXPECT_GT(end->refused, 0U);
  EXPECT_EQ(end->repeated, 0U);
}

std::vector<Case> process_cases() {
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [](const Case& c) { return c.kind == Kind::kMemory; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, ForeignWriter, testing::ValuesIn(process_cases()),
                         [](const auto& shown) { return case_name(shown.param); });

}  // namespace
}  // namespace kvferry::data_plane
