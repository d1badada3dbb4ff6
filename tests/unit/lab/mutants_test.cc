#include "lab/mutants.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvferry::lab {
namespace {

// That no guard is forgotten is the compiler's word (the switches of mutants.cc).
TEST(Mutants, EachHasANameAndASentence) {
  const std::vector<Mutant> mutants = all_mutants();
  EXPECT_GE(mutants.size(), 25U);
  std::set<std::string_view> names;
  for (const Mutant& mutant : mutants) {
    names.insert(mutant.name);
    EXPECT_EQ(mutant.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz-"), std::string_view::npos)
        << mutant.name;
    EXPECT_TRUE(mutant.without.ends_with('.')) << mutant.name;
    const bool in_core = mutant.missing.core != core::Guard::kNone;
    const bool in_model = mutant.missing.model != sim::ModelGuard::kNone;
    EXPECT_NE(in_core, in_model) << mutant.name;
    EXPECT_EQ(mutant.where, in_core ? "core" : "model of the transport");
  }
  EXPECT_EQ(names.size(), mutants.size());
}

TEST(Mutants, AreChosenByName) {
  const auto chosen = select_mutants("no-claim,ack-early", 1);
  ASSERT_TRUE(chosen);
  ASSERT_EQ(chosen->size(), 2U);
  EXPECT_EQ((*chosen)[0].missing.model, sim::ModelGuard::kClaim);
  EXPECT_EQ((*chosen)[1].missing.core, core::Guard::kDrainedAfterSettled);
  EXPECT_EQ(select_mutants("all", 1)->size(), all_mutants().size());
  const auto unknown = select_mutants("no-claim,no-such", 1);
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().what.find("'no-such' is no mutant"), std::string::npos);
}

TEST(Mutants, ASampleFollowsFromTheSeed) {
  std::set<std::string_view> seen;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto sample = select_mutants("sample:5", seed);
    ASSERT_TRUE(sample);
    std::set<std::string_view> names;
    for (const Mutant& mutant : *sample) names.insert(mutant.name);
    EXPECT_EQ(names.size(), 5U);
    EXPECT_EQ(select_mutants("sample:5", seed)->front().name, sample->front().name);
    seen.merge(names);
  }
  EXPECT_EQ(seen.size(), all_mutants().size()) << "each mutant's turn comes";
  EXPECT_FALSE(select_mutants("sample:0", 1));
  EXPECT_FALSE(select_mutants("sample:x", 1));
  EXPECT_FALSE(select_mutants("sample:1000", 1));
}

}  // namespace
}  // namespace kvferry::lab
