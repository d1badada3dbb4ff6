// The chronicle alone: whole runs of the simulator in which only the automata judge. The protocol
// as it is passes; without one of its guards a run comes to an event that no automaton allows.
#include "sim/chronicle.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "sim/world.h"

namespace kvferry::sim {
namespace {

using core::Guard;

constexpr std::uint64_t kMostEvents = 20'000;
constexpr Duration kLongest = std::chrono::seconds(30);

// The run of a seed until an automaton rejects it. What the oracle says meanwhile ends nothing.
std::optional<Rejection> judge(std::uint64_t seed, const Missing& missing,
                               std::uint64_t* told = nullptr) {
  World world(draw_profile(seed, FaultSet{}.set(), std::nullopt), missing, LogLevel::kNone);
  world.workload.start();
  world.nemesis.start();
  const Instant end = world.agenda.now() + kLongest;
  for (std::uint64_t event = 0; event < kMostEvents && !world.chronicle.rejection(); ++event) {
    if (!world.agenda.run_one(end)) {
      break;
    }
    world.trace.next_event();
  }
  if (told != nullptr) {
    *told += world.chronicle.event_count();
  }
  return world.chronicle.rejection();
}

TEST(Chronicle, AllowsWhatTheProtocolDoes) {
  std::uint64_t told = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const auto rejected = judge(seed, {}, &told);
    ASSERT_FALSE(rejected.has_value()) << "seed " << seed << ": " << rejected->text();
  }
  EXPECT_GT(told, 10'000U);
}

struct Lack {
  const char* name;
  Guard guard;
  const char* rejection;  // automaton: event
};

class WithoutAGuard : public testing::TestWithParam<Lack> {};

TEST_P(WithoutAGuard, AnAutomatonRejectsTheTrace) {
  constexpr std::uint64_t kMostSeeds = 400;
  std::string seen;
  for (std::uint64_t seed = 1; seed <= kMostSeeds; ++seed) {
    const auto rejected = judge(seed, Missing{GetParam().guard, ModelGuard::kNone});
    const std::string what = rejected ? rejected->automaton + ": " + rejected->event : "";
    if (what == GetParam().rejection) {
      return;
    }
    seen += rejected ? what + "\n" : "";
  }
  FAIL() << "not rejected within " << kMostSeeds << " seeds; others:\n" << seen;
}

INSTANTIATE_TEST_SUITE_P(
    Fenced, WithoutAGuard,
    testing::Values(Lack{"FenceBeforeRelease", Guard::kFenceBeforeRelease, "page_fenced: released"},
                    Lack{"FenceBeforeSuccess", Guard::kFenceBeforeSuccess,
                         "page_fenced: succeeded"},
                    Lack{"NoReleaseByTimeout", Guard::kNoReleaseByTimeout, "page_fenced: released"},
                    Lack{"EveryWriterDone", Guard::kEveryWriterDone, "page_fenced: succeeded"},
                    Lack{"DoneNeeded", Guard::kDoneNeeded, "page_fenced: succeeded"}),
    [](const auto& lack) { return std::string(lack.param.name); });

INSTANTIATE_TEST_SUITE_P(Unfenced, WithoutAGuard,
                         testing::Values(Lack{"EveryWriterDrained", Guard::kEveryWriterDrained,
                                              "page_unfenced: released"}),
                         [](const auto& lack) { return std::string(lack.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Writer, WithoutAGuard,
    testing::Values(Lack{"DrainedAfterSettled", Guard::kDrainedAfterSettled,
                         "ticket: drained-sent"},
                    Lack{"DoneAfterLanded", Guard::kDoneAfterLanded, "ticket: done-sent"},
                    Lack{"NoDoneAfterEnd", Guard::kNoDoneAfterEnd, "sender: committed"},
                    Lack{"SourceHeld", Guard::kSourceHeld, "source: source-released"}),
    [](const auto& lack) { return std::string(lack.param.name); });

}  // namespace
}  // namespace kvferry::sim
