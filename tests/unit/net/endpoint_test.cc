#include "net/endpoint.h"

#include <gtest/gtest.h>

namespace kvferry::net {
namespace {

TEST(Endpoint, ParsesNamesAndLiterals) {
  const auto name = parse_endpoint("node-7.cluster:30001");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->host, "node-7.cluster");
  EXPECT_EQ(name->port, 30001);
  const auto v6 = parse_endpoint("[fe80::1%eth0]:80");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->host, "fe80::1%eth0");
  EXPECT_EQ(format_endpoint(v6->host, v6->port), "[fe80::1%eth0]:80");
}

TEST(Endpoint, RefusesWhatIsNotHostAndPort) {
  for (const char* text : {"", ":", "host", "host:", ":80", "host:65536", "host:-1", "host:80x",
                           "::1:80", "[]:80", "tcp://host:80", "a b:80", "*:80", "h;x:80"}) {
    EXPECT_FALSE(parse_endpoint(text)) << text;
  }
  std::string too_long(300, 'a');
  too_long.append(":80");
  EXPECT_FALSE(parse_endpoint(too_long));
}

TEST(Endpoint, KnowsLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "10.0.0.1", "127.evil.example", "::", "example.org", ""}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

}  // namespace
}  // namespace kvferry::net
