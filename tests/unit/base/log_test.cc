#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvferry::log {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;

template <typename Run>
std::string stderr_of(Run run) {
  ::testing::internal::CaptureStderr();
  run();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, TextLinesHaveLevelNameAndRequest) {
  const std::string line = stderr_of([] {
    configure("tester", Level::kInfo, Format::kText);
    debug("not {}", "seen");
    write(Level::kWarning, "slow", "room 7");
  });
  EXPECT_THAT(line, AllOf(ContainsRegex("^[0-9-]+ [0-9:.]+ warning +tester \\[room 7\\] slow\n$")));
  EXPECT_FALSE(enabled(Level::kDebug));
  EXPECT_FALSE(enabled(Level::kOff));
}

TEST(Log, JsonLinesEscapeWhatPeersSay) {
  const std::string line = stderr_of([] {
    configure("test\"er%v", Level::kInfo, Format::kJson);
    write(Level::kError, "a \"b\" \\ \n \x1b \xff \xc3\xa9 %v", "r\"1");
  });
  EXPECT_THAT(line, HasSubstr(R"("level":"error","name":"test\"er%v",)"));
  EXPECT_THAT(line, EndsWith("\"text\":\"a \\\"b\\\" \\\\ \\n \\u001b \xEF\xBF\xBD \xc3\xa9 %v\","
                             "\"request\":\"r\\\"1\"}\n"));
}

TEST(Log, TextLinesStayOneLine) {
  const std::string line = stderr_of([] {
    configure("tester", Level::kInfo, Format::kText);
    error("first\nsecond\r\x1b[2J");
  });
  EXPECT_THAT(line, EndsWith("first\\nsecond\\u000d\\u001b[2J\n"));
}

TEST(RateLimit, LetsOneLinePassPerIntervalAndCountsTheRest) {
  RateLimit limit(milliseconds(100));
  const auto at = [](int ms) { return Instant(milliseconds(ms)); };
  EXPECT_TRUE(limit.allow(at(0)));
  EXPECT_EQ(limit.suppressed(), 0U);
  EXPECT_FALSE(limit.allow(at(1)));
  EXPECT_FALSE(limit.allow(at(99)));
  EXPECT_TRUE(limit.allow(at(100)));
  EXPECT_EQ(limit.suppressed(), 2U);
  EXPECT_TRUE(limit.allow(at(500)));
  EXPECT_EQ(limit.suppressed(), 0U);
}

}  // namespace
}  // namespace kvferry::log
