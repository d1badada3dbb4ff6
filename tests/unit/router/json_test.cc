#include "router/json.h"

#include <gtest/gtest.h>

#include "contains.h"

namespace kvferry::router {
namespace {

std::string problem(std::string_view text) {
  const auto document = JsonDocument::parse(text);
  return document ? "" : document.error().what;
}

TEST(JsonDocument, NamesThePositionOfAnError) {
  const std::string what = problem("{\"a\": 1,\n \"b\": tru }");
  EXPECT_TRUE(contains(what, "line 2")) << what;
  EXPECT_TRUE(contains(what, "byte 1")) << what;
  EXPECT_TRUE(contains(problem("{\"a\": 1"), "byte 7")) << problem("{\"a\": 1");
  EXPECT_TRUE(contains(problem("{} x"), "extra text")) << problem("{} x");
  EXPECT_NE(problem(""), "");
  EXPECT_NE(problem("{\"a\": \"\xff\"}"), "");
  EXPECT_EQ(problem(" {} \n"), "");
}

TEST(JsonDocument, RefusesDeepNesting) {
  const std::string deep = std::string(100'000, '[');
  EXPECT_NE(problem(deep), "");
}

TEST(JsonView, ReadsOtherKindsAsEmpty) {
  const auto document =
      JsonDocument::parse(R"({"n": 3, "f": 1.5, "s": "x", "b": true, "l": [1, null], "z": null})");
  ASSERT_TRUE(document);
  const JsonView root = document->root();
  EXPECT_EQ(root["n"].integer(), 3);
  EXPECT_EQ(root["f"].integer(), std::nullopt);
  EXPECT_EQ(root["f"].number(), 1.5);
  EXPECT_EQ(root["s"].text(), "x");
  EXPECT_EQ(root["s"].integer(), std::nullopt);
  EXPECT_EQ(root["z"].text(), std::nullopt);
  EXPECT_TRUE(root["z"].exists());
  EXPECT_EQ(root["b"].boolean(), true);
  EXPECT_EQ(root["l"].size(), 2U);
  EXPECT_EQ(root["l"].at(0).integer(), 1);
  EXPECT_FALSE(root["l"].at(9).exists());
  EXPECT_FALSE(root["none"]["deeper"].at(1).exists());
}

TEST(JsonObject, EscapesWhatItQuotes) {
  EXPECT_EQ(json_quote("a\"b\\c\nd\x01"), "\"a\\\"b\\\\c\\nd\\u0001\"");
  EXPECT_EQ(json_quote("h\xc3\xa9 \xff"), "\"h\xc3\xa9 \xef\xbf\xbd\"");
  EXPECT_EQ(json_quote("\xc3"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(JsonObject().text("a", "b").integer("n", -1).boolean("t", true).str(),
            R"({"a":"b","n":-1,"t":true})");
  EXPECT_EQ(JsonObject().number("x", 0.5).raw("l", json_array({"1", "2"})).str(),
            R"({"x":0.5,"l":[1,2]})");
  EXPECT_TRUE(JsonDocument::parse(json_quote(std::string("\xed\xa0\x80\xf5\x00", 5))));
}

}  // namespace
}  // namespace kvferry::router
