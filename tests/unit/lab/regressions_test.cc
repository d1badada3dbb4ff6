#include "lab/regressions.h"

#include <gtest/gtest.h>

namespace kvferry::lab {
namespace {

TEST(Regressions, ALineHasASeedOptionsAndASentence) {
  const auto parsed = parse_regressions(
      "# for readers\n"
      "\n"
      "0x5d0c --rooms 2 --faults crash,replay  # pages came back twice after a replay\r\n"
      "7  # a grant was forgotten\n");
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->size(), 2U);
  EXPECT_EQ((*parsed)[0].line, 3U);
  EXPECT_EQ((*parsed)[0].options.seed, 0x5d0cU);
  EXPECT_EQ((*parsed)[0].options.rooms, 2U);
  EXPECT_EQ((*parsed)[0].options.faults, *sim::faults_from_list("crash,replay"));
  EXPECT_EQ((*parsed)[0].sentence, "pages came back twice after a replay");
  EXPECT_EQ((*parsed)[1].options.seed, 7U);
  EXPECT_FALSE((*parsed)[1].options.rooms);
  EXPECT_TRUE((*parsed)[1].options.faults.all());
}

TEST(Regressions, AnErrorNamesItsLine) {
  const auto problem = [](std::string_view text) {
    const auto parsed = parse_regressions(text);
    return parsed ? std::string() : parsed.error().what;
  };
  EXPECT_NE(problem("1 # ok\n2\n").find("line 2: the sentence is missing"), std::string::npos);
  EXPECT_NE(problem("x # no seed").find("line 1: 'x' is no seed"), std::string::npos);
  EXPECT_NE(problem("1 --rooms # none").find("--rooms: ''"), std::string::npos);
  EXPECT_NE(problem("1 --until 5 # no").find("'--until' is neither"), std::string::npos);
  EXPECT_NE(problem("1 --faults nonsense # no").find("nonsense"), std::string::npos);
}

}  // namespace
}  // namespace kvferry::lab
