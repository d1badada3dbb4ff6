#include "lab/seeds.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvferry::lab {
namespace {

TEST(Seeds, NumbersCountOn) {
  const auto decimal = parse_seeds("41");
  ASSERT_TRUE(decimal);
  EXPECT_EQ(decimal->first(), 41U);
  EXPECT_EQ(decimal->at(2), 43U);
  const auto hex = parse_seeds("0xff");
  ASSERT_TRUE(hex);
  EXPECT_EQ(hex->at(1), 0x100U);
  EXPECT_EQ(parse_seeds("18446744073709551615")->first(), UINT64_MAX);
}

TEST(Seeds, ACommitsHashGivesSeedsOfItsOwn) {
  const auto one = parse_seeds("1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d");
  const auto neighbour = parse_seeds("1a2b3c4d5e6f7082");
  ASSERT_TRUE(one && neighbour);
  EXPECT_EQ(one->first(), 0x1a2b3c4d5e6f7081U);
  EXPECT_EQ(neighbour->first(), one->first() + 1);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1'000; ++i) {
    seen.insert(one->at(i));
    seen.insert(neighbour->at(i));
  }
  EXPECT_EQ(seen.size(), 2'000U);
}

TEST(Seeds, AHashOfDigitsAloneIsNoNumberWhenItIsTooLong) {
  const auto hash = parse_seeds("1234567890123456789012345678901234567890");
  ASSERT_TRUE(hash);
  EXPECT_EQ(hash->first(), 0x1234567890123456U);
}

TEST(Seeds, RefusesWhatIsNone) {
  for (const char* text : {"", "-1", "abc", "0x", "0x10000000000000000", "12g4567", "1.5",
                           "1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d0"}) {
    const auto parsed = parse_seeds(text);
    EXPECT_FALSE(parsed) << text;
    if (!parsed) {
      EXPECT_NE(parsed.error().what.find(std::string("'") + text + "'"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvferry::lab
