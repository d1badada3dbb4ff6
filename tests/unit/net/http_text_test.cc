#include "net/http_text.h"

#include <gtest/gtest.h>

namespace kvferry::net {
namespace {

TEST(HttpText, HeadersIgnoreCase) {
  HttpHeaders headers;
  headers.set("Content-Type", "text/plain");
  headers.set("content-type", "application/json");
  ASSERT_EQ(headers.fields.size(), 1U);
  EXPECT_EQ(headers.get("CONTENT-TYPE"), "application/json");
  EXPECT_EQ(headers.get("Accept"), "");
}

TEST(HttpText, SplitsTheTarget) {
  HttpRequest request;
  request.target = "/v1/rooms?name=a%20b+c&empty=&name=second&x=%C3%A4#part";
  EXPECT_EQ(request.path(), "/v1/rooms");
  EXPECT_EQ(request.query("name"), "a b c");
  EXPECT_EQ(request.query("empty"), "");
  EXPECT_EQ(request.query("x"), "\xC3\xA4");
  EXPECT_EQ(request.query("missing"), "");
  request.target = "http://host:80/path?q=1";
  EXPECT_EQ(request.path(), "/path");
  EXPECT_EQ(request.query("q"), "1");
  for (const char* broken : {"", "/?name=%", "/?name=%zz", "/?%00", "?", "/?=&&="}) {
    request.target = broken;
    EXPECT_EQ(request.query("name"), "") << broken;
  }
}

TEST(HttpText, TokensInAList) {
  EXPECT_TRUE(has_token("close", "close"));
  EXPECT_TRUE(has_token("Upgrade , Close", "close"));
  EXPECT_FALSE(has_token("closed", "close"));
  EXPECT_FALSE(has_token("", "close"));
  EXPECT_FALSE(has_token(" , ,", "close"));
}

TEST(HttpText, ErrorBodyIsValidJson) {
  const HttpResponse response = error_response(400, "line\n\"quoted\" \\ \x01", "bad");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.headers.get("content-type"), "application/json");
  EXPECT_EQ(response.body, R"({"error":{"message":"line\u000a\"quoted\" \\ \u0001",)"
                           R"("type":"invalid_request_error","param":null,"code":"bad"}})");
  EXPECT_NE(error_response(500, "x", "", "server_error").body.find(R"("code":null)"),
            std::string::npos);
}

TEST(HttpText, DropsFieldsThatBelongToTheConnectionOrBreakLines) {
  HttpResponse response = text_response(200, "abc");
  response.headers.set("Transfer-Encoding", "chunked");
  response.headers.set("content-length", "99");
  response.headers.set("X-Split", "a\r\nEvil: 1");
  response.headers.set("X-Good", "1");
  const std::string head = response_head(response, BodyFraming::kLength, 3, true);
  EXPECT_EQ(head,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Good: 1\r\n"
            "Content-Length: 3\r\nConnection: keep-alive\r\n\r\n");
  HttpRequest request;
  request.method = "POST";
  request.headers.set("Host", "original");
  request.headers.set("Expect", "100-continue");
  EXPECT_EQ(request_head(request, "node:80"),
            "POST / HTTP/1.1\r\nHost: original\r\nContent-Length: 0\r\n\r\n");
}

}  // namespace
}  // namespace kvferry::net
