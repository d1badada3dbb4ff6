#include "router/request_body.h"

#include <gtest/gtest.h>

#include "router/json.h"

namespace kvferry::router {
namespace {

TEST(CheckRequestBody, RefusesWhatIsNoObject) {
  for (const char* body : {"", "[]", "3", "{", "{\"a\":}", "null", "{} {}"}) {
    const Status status = check_request_body(body);
    ASSERT_FALSE(status) << body;
    EXPECT_NE(status.error().what.find("byte"), std::string::npos) << status.error().what;
  }
}

TEST(CheckRequestBody, RefusesTheRoutersOwnFields) {
  for (const char* name : {"bootstrap_host", "bootstrap_port", "bootstrap_room", "kvferry_binding",
                           "kvferry_prefill", "bootstrap\\u005froom"}) {
    const Status status =
        check_request_body("{\"prompt\":\"x\",\"" + std::string(name) + "\":null}");
    EXPECT_FALSE(status) << name;
  }
  // Deeper down the names mean nothing.
  EXPECT_TRUE(check_request_body(R"({"metadata":{"bootstrap_room":1}})"));
}

TEST(AddTransferFields, KeepsTheClientsTextByteByByte) {
  const std::string body =
      " { \"prompt\": \"a}b\", \"n\": 1.10, \"big\": 123456789012345678901234 } ";
  const TransferNames names{RoomId(7), Binding{1, 2}};
  const std::string sent = add_transfer_fields(body, {"host", 80}, names, "p-0");
  EXPECT_TRUE(sent.ends_with(body.substr(2))) << sent;
  const auto document = JsonDocument::parse(sent);
  ASSERT_TRUE(document) << sent;
  const JsonView root = document->root();
  EXPECT_EQ(root["bootstrap_host"].text(), "host");
  EXPECT_EQ(root["bootstrap_port"].integer(), 80);
  EXPECT_EQ(root["bootstrap_room"].integer(), 7);
  EXPECT_EQ(root["kvferry_binding"].text(), names.binding.to_hex());
  EXPECT_EQ(root["kvferry_prefill"].text(), "p-0");
  EXPECT_EQ(root["prompt"].text(), "a}b");
}

TEST(AddTransferFields, AnEmptyObjectStaysValid) {
  const std::string sent = add_transfer_fields(" {\n} ", {"h", 1}, TransferNames::draw(), "p");
  EXPECT_TRUE(JsonDocument::parse(sent)) << sent;
}

TEST(TransferNames, AreFreshAndFitAJsonInteger) {
  const TransferNames a = TransferNames::draw();
  const TransferNames b = TransferNames::draw();
  EXPECT_NE(a.binding, b.binding);
  EXPECT_NE(a.room, b.room);
  EXPECT_EQ(a.room.value() >> 63, 0U);
  EXPECT_FALSE(a.binding.is_zero());
}

TEST(ParseAddress, TakesHostAndPort) {
  EXPECT_EQ(parse_address("127.0.0.1:80")->port, 80);
  EXPECT_EQ(parse_address("http://host:8000/")->host, "host");
  EXPECT_EQ(parse_address("[::1]:9")->host, "[::1]");
  for (const char* bad : {"", "host", "host:", ":80", "host:0", "host:65536", "host:80x", "a:b:80",
                          "https://host:80", "host:-1"}) {
    EXPECT_FALSE(parse_address(bad)) << bad;
  }
}

TEST(ErrorResponse, HasOpenAisShape) {
  const net::HttpResponse response = error_response(503, "no \"pair\"", "no_pair_ready");
  EXPECT_EQ(response.status, 503);
  const auto document = JsonDocument::parse(response.body);
  ASSERT_TRUE(document);
  const JsonView error = document->root()["error"];
  EXPECT_EQ(error["message"].text(), "no \"pair\"");
  EXPECT_EQ(error["type"].text(), "server_error");
  EXPECT_EQ(error["code"].text(), "no_pair_ready");
  EXPECT_TRUE(error["param"].exists());
}

}  // namespace
}  // namespace kvferry::router
