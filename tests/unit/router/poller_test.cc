#include "router/poller.h"

#include <gtest/gtest.h>

namespace kvferry::router {
namespace {

TEST(ReadReadyz, TakesInstanceAndReasons) {
  const ServerReport ready = read_readyz(200, R"({"ready":true,"instance":"p0"})");
  EXPECT_TRUE(ready.ready);
  EXPECT_EQ(ready.instance, "p0");
  const ServerReport draining =
      read_readyz(503, R"({"ready":false,"instance":"p0","problems":["draining","full"]})");
  EXPECT_FALSE(draining.ready);
  EXPECT_EQ(draining.reason, "draining; full");
}

TEST(ReadReadyz, TakesTheChecksThatFailed) {
  const ServerReport report = read_readyz(503, R"({"ready":false,"checks":[
      {"name":"engine","ok":true,"detail":null},
      {"name":"quarantine","ok":false,"detail":"12 of 10 pages"},
      {"name":"draining","ok":false,"detail":null}]})");
  EXPECT_EQ(report.reason, "quarantine: 12 of 10 pages; draining");
}

TEST(ReadReadyz, AnswersThatAreNoJsonHaveAReasonToo) {
  EXPECT_EQ(read_readyz(500, "oops").reason, "/readyz answered 500");
  EXPECT_TRUE(read_readyz(200, "ok").ready);
}

TEST(ReadPairs, ReadsRowsAndRefusesTheRest) {
  const auto pairs = read_pairs(200, R"({"pairs":[
      {"peer":"h:1","instance":"p0","ready":true,"reason":null,"last_heard_ms":3},
      {"peer":"h:2","instance":null,"ready":false,"reason":"unreachable","last_heard_ms":-1},
      7]})");
  ASSERT_TRUE(pairs);
  ASSERT_EQ(pairs->size(), 3U);
  EXPECT_TRUE((*pairs)[0].ready);
  EXPECT_EQ((*pairs)[1].reason, "unreachable");
  EXPECT_FALSE((*pairs)[2].ready);
  EXPECT_FALSE(read_pairs(404, "{}"));
  EXPECT_FALSE(read_pairs(200, "{}"));
  EXPECT_FALSE(read_pairs(200, "not JSON"));
}

}  // namespace
}  // namespace kvferry::router
