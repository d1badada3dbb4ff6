#include "serve/text_stream.h"

#include <gtest/gtest.h>

namespace kvferry::serve {
namespace {

TEST(TextStream, PassesPlainTextAtOnce) {
  TextStream stream({});
  EXPECT_EQ(stream.push("Hello"), "Hello");
  EXPECT_EQ(stream.push(""), "");
  EXPECT_EQ(stream.flush(), "");
}

TEST(TextStream, SaysWhichStopStringEndedIt) {
  TextStream stream({"later", "b", "ab"});
  EXPECT_EQ(stream.matched(), "");
  EXPECT_EQ(stream.push("x ab later"), "x ");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.matched(), "ab");  // the first in the text, not in the list
}

TEST(TextStream, HoldsUnfinishedCharacters) {
  TextStream stream({});
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x9A"), "");
  EXPECT_EQ(stream.push("\xA2z"), "\xF0\x9F\x9A\xA2z");
  EXPECT_EQ(stream.push("\xC3"), "");
  EXPECT_EQ(stream.flush(), "\xEF\xBF\xBD");
}

TEST(TextStream, ReplacesWhatIsNeverValid) {
  TextStream stream({});
  EXPECT_EQ(stream.push("\xFFok\x80"), "\xEF\xBF\xBDok\xEF\xBF\xBD");
  EXPECT_EQ(valid_utf8("\xC0\xAF"), "\xEF\xBF\xBD\xEF\xBF\xBD");  // overlong
  EXPECT_EQ(valid_utf8("\xED\xA0\x80").size(), 9U);               // surrogate
  EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80").size(), 12U);          // past U+10FFFF
  EXPECT_EQ(valid_utf8("\xE2\x82\xAC"), "\xE2\x82\xAC");
}

TEST(TextStream, StopsAcrossPieces) {
  TextStream stream({"STOP"});
  EXPECT_EQ(stream.push("abcS"), "abc");
  EXPECT_EQ(stream.push("TO"), "");
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.push("Pdef"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.push("more"), "");
  EXPECT_EQ(stream.flush(), "");
}

TEST(TextStream, LetsGoOfWhatIsNoStop) {
  TextStream stream({"STOP", "\n\n"});
  EXPECT_EQ(stream.push("xST"), "x");
  EXPECT_EQ(stream.push("AY\n"), "STAY");
  EXPECT_EQ(stream.push("y"), "\ny");
  EXPECT_EQ(stream.push("STO"), "");
  EXPECT_EQ(stream.flush(), "STO");
}

TEST(TextStream, TheEarliestStopCounts) {
  TextStream stream({"later", "b"});
  EXPECT_EQ(stream.push("a later b"), "a ");
  EXPECT_TRUE(stream.stopped());
  TextStream repeated({"aab"});
  EXPECT_EQ(repeated.push("aa"), "");
  EXPECT_EQ(repeated.push("a"), "a");
  EXPECT_EQ(repeated.push("b"), "");
  EXPECT_TRUE(repeated.stopped());
}

}  // namespace
}  // namespace kvferry::serve
