#include "serve/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace kvferry::serve {
namespace {

TEST(Sampler, GreedyTakesTheFirstOfEquals) {
  const std::vector<float> logits{0.F, 3.F, 3.F, 1.F};
  const Sampled sampled = sample(logits, {0.0, 0.5, 9}, 4);
  EXPECT_EQ(sampled.token, 1);
  const double sum = std::exp(-3.) + 1 + 1 + std::exp(-2.);
  EXPECT_NEAR(sampled.logprob, -std::log(sum), 1e-5);
}

TEST(Sampler, NoLogitsNoToken) { EXPECT_EQ(sample({}, {}, 0).token, -1); }

TEST(Sampler, DrawDependsOnSeedAndIndexOnly) {
  const std::vector<float> logits{1.F, 1.F, 1.F, 1.F, 1.F, 1.F, 1.F, 1.F};
  std::vector<Token> once;
  for (std::uint32_t index = 0; index < 32; ++index) {
    once.push_back(sample(logits, {1.0, 1.0, 5}, index).token);
  }
  for (std::uint32_t index = 32; index-- > 0;) {
    EXPECT_EQ(sample(logits, {1.0, 1.0, 5}, index).token, once[index]);
  }
  std::vector<Token> other;
  for (std::uint32_t index = 0; index < 32; ++index) {
    other.push_back(sample(logits, {1.0, 1.0, 6}, index).token);
  }
  EXPECT_NE(once, other);
}

TEST(Sampler, FollowsTheDistribution) {
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.2F)};
  std::map<Token, int> counts;
  for (std::uint32_t index = 0; index < 20'000; ++index) {
    ++counts[sample(logits, {1.0, 1.0, 1}, index).token];
  }
  EXPECT_NEAR(counts[0], 10'000, 400);
  EXPECT_NEAR(counts[1], 6'000, 400);
  EXPECT_NEAR(counts[2], 4'000, 400);
}

TEST(Sampler, TopPDropsTheTail) {
  const std::vector<float> logits{std::log(0.2F), std::log(0.5F), std::log(0.3F)};
  std::map<Token, int> counts;
  for (std::uint32_t index = 0; index < 4'000; ++index) {
    ++counts[sample(logits, {1.0, 0.75, 1}, index).token];
  }
  EXPECT_EQ(counts[0], 0);
  EXPECT_NEAR(counts[1], 2'500, 200);
  EXPECT_NEAR(counts[2], 1'500, 200);
}

}  // namespace
}  // namespace kvferry::serve
