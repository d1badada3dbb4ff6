#include "kvferry/bootstrap_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "registry_client.h"
#include "temp_file.h"

namespace kvferry {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BootstrapServerTest : public testing::Test {
 protected:
  BootstrapServerTest() {
    BootstrapServerOptions options;
    options.cluster_token_file = token_.path();
    auto started = BootstrapServer::start(options);
    EXPECT_TRUE(started) << (started ? "" : started.error().what);
    server_ = std::move(*started);
    honest_ = std::make_unique<test::RegistryClient>(server_->address(), token_.path());
    stranger_ = std::make_unique<test::RegistryClient>(server_->address(), other_token_.path());
  }

  std::string metrics() { return honest_->send(honest_->request("GET", "/metrics")).body; }

  test::TempFile token_{"a-token-of-this-cluster\n"};
  test::TempFile other_token_{"a-token-of-another-one\n"};
  std::unique_ptr<BootstrapServer> server_;
  std::unique_ptr<test::RegistryClient> honest_;
  std::unique_ptr<test::RegistryClient> stranger_;
};

TEST_F(BootstrapServerTest, RegistersListsAndLetsGo) {
  const auto row = test::prefill_row("a:1", 1);
  EXPECT_EQ(honest_->send(honest_->registration("PUT", row)).status, 200);
  EXPECT_THAT(metrics(), HasSubstr("kvferry_registry_rows 1"));

  const auto listed = honest_->send(honest_->request("GET", "/v1/ranks?role=prefill&instance=p"));
  ASSERT_EQ(listed.status, 200);
  std::size_t skipped = 0;
  const auto rows = runtime::decode_rows(listed.body, skipped);
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 1U);
  core::RegistryRow expected = row;
  expected.signature = honest_->tokens->sign(runtime::row_text(row));
  EXPECT_EQ(rows->front(), expected);

  const auto none = honest_->send(honest_->request("GET", "/v1/ranks?role=decode"));
  EXPECT_EQ(none.body, R"({"rows":[]})");
  EXPECT_EQ(honest_->send(honest_->registration("DELETE", row)).status, 200);
  EXPECT_THAT(metrics(), HasSubstr("kvferry_registry_rows 0"));
}

TEST_F(BootstrapServerTest, RefusesForgedSignatures) {
  const auto row = test::prefill_row("a:1", 1);
  EXPECT_EQ(stranger_->send(stranger_->registration("PUT", row)).status, 401);
  EXPECT_EQ(stranger_->send(stranger_->request("GET", "/v1/ranks")).status, 401);
  net::HttpRequest bare;
  bare.target = "/v1/ranks";
  EXPECT_EQ(honest_->send(bare).status, 401);
  // A request that is signed, about a row that its owner did not sign.
  auto forged = row;
  forged.signature = stranger_->tokens->sign(runtime::row_text(row));
  const auto response = honest_->send(
      honest_->request("PUT", "/v1/ranks", runtime::encode_registration({forged, 1'000})));
  EXPECT_EQ(response.status, 401);
  EXPECT_THAT(response.body, HasSubstr(R"("code":"unauthorized")"));
  // A signature does not cover another body or target.
  auto changed = honest_->registration("PUT", row);
  changed.body += " ";
  EXPECT_EQ(honest_->send(changed).status, 401);
  EXPECT_THAT(metrics(), HasSubstr("kvferry_registry_unauthorized_total 5"));
}

TEST_F(BootstrapServerTest, RefusesReplays) {
  const auto request = honest_->registration("PUT", test::prefill_row("a:1", 1));
  EXPECT_EQ(honest_->send(request).status, 200);
  EXPECT_EQ(honest_->send(request).status, 401);
  EXPECT_THAT(metrics(), AllOf(HasSubstr("kvferry_registry_replays_total 1"),
                               HasSubstr("kvferry_registry_unauthorized_total 1")));
}

TEST_F(BootstrapServerTest, RefusesTimesFarOff) {
  net::HttpRequest request;
  request.target = "/v1/ranks";
  const std::string time = std::to_string(runtime::unix_seconds() - 3'600);
  const std::string nonce(32, 'a');
  request.headers.set(std::string(runtime::kTimeHeader), time);
  request.headers.set(std::string(runtime::kNonceHeader), nonce);
  request.headers.set(std::string(runtime::kSignatureHeader),
                      honest_->tokens->sign(runtime::request_text(request, time, nonce)));
  const auto response = honest_->send(request);
  EXPECT_EQ(response.status, 401);
  EXPECT_THAT(response.body, HasSubstr("s off"));
}

TEST_F(BootstrapServerTest, AConflictNamesBothOwners) {
  EXPECT_EQ(honest_->send(honest_->registration("PUT", test::prefill_row("a:1", 1))).status, 200);
  const auto response = honest_->send(honest_->registration("PUT", test::prefill_row("b:2", 2)));
  EXPECT_EQ(response.status, 409);
  EXPECT_THAT(response.body,
              AllOf(HasSubstr("a:1"), HasSubstr("b:2"), HasSubstr(R"("code":"conflict")")));
  EXPECT_THAT(metrics(), HasSubstr("kvferry_registry_conflicts_total 1"));
}

TEST_F(BootstrapServerTest, RefusesASupersededIncarnation) {
  EXPECT_EQ(honest_->send(honest_->registration("PUT", test::prefill_row("a:1", 1))).status, 200);
  EXPECT_EQ(honest_->send(honest_->registration("PUT", test::prefill_row("a:1", 2))).status, 200);
  const auto response = honest_->send(honest_->registration("PUT", test::prefill_row("a:1", 1)));
  EXPECT_EQ(response.status, 409);
  EXPECT_THAT(response.body, HasSubstr("superseded"));
}

TEST_F(BootstrapServerTest, AnswersNonsenseWithItsCause) {
  const auto put = [&](std::string body) {
    return honest_->send(honest_->request("PUT", "/v1/ranks", std::move(body)));
  };
  EXPECT_EQ(put("").status, 400);
  EXPECT_EQ(put("{").status, 400);
  EXPECT_EQ(put(std::string(1'000, '[')).status, 400);
  EXPECT_EQ(put(R"({"row":{"role":"king"},"lease_ms":1})").status, 400);
  EXPECT_THAT(put(R"({"row":{},"lease_ms":1})").body, HasSubstr(R"("code":"malformed")"));
  EXPECT_EQ(put(std::string(100'000, ' ')).status, 413);
  auto outside = test::prefill_row("a:1", 1);
  outside.rank.tp_rank = 5;
  EXPECT_EQ(honest_->send(honest_->registration("PUT", outside)).status, 400);
  EXPECT_EQ(honest_->send(honest_->request("GET", "/v1/ranks?role=king")).status, 400);
  EXPECT_EQ(honest_->send(honest_->request("GET", "/v1/ranks?dp_rank=x")).status, 400);
  EXPECT_EQ(honest_->send(honest_->request("GET", "/v1/nothing")).status, 404);
  const auto wrong = honest_->send(honest_->request("POST", "/v1/ranks"));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.get("allow"), "GET, PUT, DELETE");
  EXPECT_EQ(honest_->send(honest_->request("POST", "/metrics")).status, 405);
}

TEST_F(BootstrapServerTest, TellsItsHealth) {
  for (const char* path : {"/health", "/livez", "/readyz"}) {
    EXPECT_EQ(stranger_->send(stranger_->request("GET", path)).status, 200) << path;
  }
  server_->stop();
  server_->stop();
}

TEST(BootstrapServer, WithoutATokenItListensOnLoopbackOnly) {
  BootstrapServerOptions options;
  options.host = "0.0.0.0";
  const auto open = BootstrapServer::start(options);
  ASSERT_FALSE(open);
  EXPECT_THAT(open.error().what, HasSubstr("cluster_token_file"));
  options.host = "127.0.0.1";
  const auto local = BootstrapServer::start(options);
  ASSERT_TRUE(local);
  test::RegistryClient client((*local)->address(), "");
  EXPECT_EQ(client.send(client.registration("PUT", test::prefill_row("a:1", 1))).status, 200);
}

}  // namespace
}  // namespace kvferry
