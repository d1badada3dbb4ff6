#include "runtime/bootstrap_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "kvferry/bootstrap_server.h"
#include "registry_client.h"
#include "support/await.h"
#include "temp_file.h"

namespace kvferry::runtime {
namespace {

using testing::HasSubstr;

const std::string kKeyA(40, 'a');
const std::string kKeyB(40, 'b');

class BootstrapClientTest : public testing::Test {
 protected:
  BootstrapClientTest() {
    start_server(0);
    options_.bootstrap_addresses = {server_->address()};
    options_.cluster_token_file = token_.path();
    options_.lease_ms = 1'000;
    options_.http_total_timeout_ms = 2'000;
    tokens_ = std::move(*ClusterTokens::load(token_.path()));
    mailbox_ = std::move(*Mailbox::make(100));
    registry_ = std::make_unique<test::RegistryClient>(server_->address(), token_.path());
    self_ = test::prefill_row("decode:1", 77);
    self_.role = Role::kDecode;
    self_.instance = "d";
    self_.public_key = kKeyA;
  }

  void start_server(std::uint16_t port) {
    BootstrapServerOptions options;
    options.port = port;
    options.cluster_token_file = token_.path();
    auto started = BootstrapServer::start(options);
    ASSERT_TRUE(started) << started.error().what;
    server_ = std::move(*started);
  }
  void start_client() {
    client_ = std::make_unique<BootstrapClient>(options_, self_, *tokens_, keys_, *mailbox_);
    ASSERT_TRUE(client_->start());
  }
  core::RegistryRow prefill(std::uint32_t tp, std::uint32_t tp_size, std::uint64_t incarnation) {
    auto row = test::prefill_row("prefill:" + std::to_string(tp), incarnation);
    row.rank.tp_rank = tp;
    row.rank.tp_size = tp_size;
    row.public_key = kKeyB;
    return row;
  }
  void put(const core::RegistryRow& row) {
    ASSERT_EQ(registry_->send(registry_->registration("PUT", row)).status, 200);
  }
  // The next event of this kind.
  template <typename Kind>
  std::optional<Kind> next() {
    std::optional<Kind> found;
    test::await([&] {
      if (queued_.empty()) {
        mailbox_->drain(queued_);
      }
      while (!queued_.empty() && !found) {
        if (auto* event = std::get_if<Kind>(&queued_.front())) {
          found = std::move(*event);
        }
        queued_.erase(queued_.begin());
      }
      return found.has_value();
    });
    return found;
  }
  core::PrefillResolved resolve(const std::string& address, const std::string& instance) {
    client_->resolve({core::ReceiverId(++receiver_), address, instance, 0});
    auto answer = next<core::PrefillResolved>();
    EXPECT_TRUE(answer.has_value());
    EXPECT_EQ(answer->receiver, core::ReceiverId(receiver_));
    return std::move(*answer);
  }
  bool await_registered() {
    return test::await([&] { return client_->readiness_problems().empty(); });
  }

  test::TempFile token_{"a-token-of-this-cluster\n"};
  std::unique_ptr<BootstrapServer> server_;
  Options options_;
  std::unique_ptr<ClusterTokens> tokens_;
  KeyDirectory keys_{std::chrono::seconds(3)};
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<test::RegistryClient> registry_;
  core::RegistryRow self_;
  std::unique_ptr<BootstrapClient> client_;
  std::vector<core::Event> queued_;
  std::uint64_t receiver_ = 0;
};

TEST_F(BootstrapClientTest, RegistersAndLeaves) {
  start_client();
  ASSERT_TRUE(await_registered());
  const auto listed = [&] {
    return registry_->send(registry_->request("GET", "/v1/ranks?role=decode")).body;
  };
  EXPECT_THAT(listed(), HasSubstr("decode:1"));
  EXPECT_TRUE(test::await([&] { return keys_.is_allowed(kKeyA, monotonic_now()); }));
  client_->stop();
  EXPECT_EQ(listed(), R"({"rows":[]})");
}

TEST_F(BootstrapClientTest, RegistersAnewAtARegistryThatRestartedEmpty) {
  start_client();
  ASSERT_TRUE(await_registered());
  const std::string address = server_->address();
  server_.reset();
  start_server(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  EXPECT_TRUE(test::await([&] {
    return registry_->send(registry_->request("GET", "/v1/ranks")).body.find("decode:1") !=
           std::string::npos;
  }));
  EXPECT_TRUE(client_->readiness_problems().empty());
}

TEST_F(BootstrapClientTest, ResolvesAReplicaAndKnowsItsKeyFirst) {
  put(prefill(0, 2, 1));
  put(prefill(1, 2, 2));
  start_client();
  const auto answer = resolve(server_->address(), "");
  ASSERT_TRUE(answer.rows) << answer.rows.error().what;
  ASSERT_EQ(answer.rows->size(), 2U);
  EXPECT_EQ((*answer.rows)[1].address, (PeerAddress{"prefill:1", kKeyB}));
  EXPECT_TRUE(keys_.is_allowed(kKeyB, monotonic_now()));
}

TEST_F(BootstrapClientTest, WaitsForRanksThatComeLater) {
  put(prefill(0, 2, 1));
  options_.http_total_timeout_ms = 20'000;
  start_client();
  client_->resolve({core::ReceiverId(1), server_->address(), "p", 0});
  // It has looked, in vain, before the second rank is there.
  ASSERT_TRUE(test::await([&] { return client_->counters().lookups >= 2; }));
  put(prefill(1, 2, 2));
  const auto answer = next<core::PrefillResolved>();
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->rows) << answer->rows.error().what;
}

TEST_F(BootstrapClientTest, SaysWhichRanksNeverCame) {
  put(prefill(0, 2, 1));
  options_.http_total_timeout_ms = 1'000;
  start_client();
  const auto answer = resolve(server_->address(), "p");
  ASSERT_FALSE(answer.rows);
  EXPECT_EQ(answer.rows.error().code, FailureCode::kPrefillUnknown);
  EXPECT_THAT(answer.rows.error().what, HasSubstr("1 of 2 ranks registered, missing tp 1"));
  // The failure is not kept: the next room finds what is there by then.
  put(prefill(1, 2, 2));
  EXPECT_TRUE(resolve(server_->address(), "p").rows);
}

TEST_F(BootstrapClientTest, ContactsNobodyWhoIsNotAllowed) {
  BootstrapServerOptions other_options;
  other_options.cluster_token_file = token_.path();
  auto other = std::move(*BootstrapServer::start(other_options));
  start_client();
  const auto answer = resolve(other->address(), "p");
  ASSERT_FALSE(answer.rows);
  EXPECT_EQ(answer.rows.error().code, FailureCode::kUnauthorized);
  EXPECT_THAT(answer.rows.error().what, HasSubstr("bootstrap_allow"));
  EXPECT_FALSE(client_->keep_paired(other->address()));
  test::RegistryClient reader(other->address(), token_.path());
  EXPECT_THAT(reader.send(reader.request("GET", "/metrics")).body,
              HasSubstr("kvferry_registry_requests_total 1\n"));
}

TEST_F(BootstrapClientTest, RegistersWhereARequestSendsIt) {
  BootstrapServerOptions other_options;
  other_options.cluster_token_file = token_.path();
  auto other = std::move(*BootstrapServer::start(other_options));
  options_.bootstrap_allow = {other->address()};
  test::RegistryClient registry(other->address(), token_.path());
  ASSERT_EQ(registry.send(registry.registration("PUT", prefill(0, 1, 1))).status, 200);
  start_client();
  EXPECT_TRUE(resolve(other->address(), "p").rows);
  EXPECT_THAT(registry.send(registry.request("GET", "/v1/ranks?role=decode")).body,
              HasSubstr("decode:1"));
}

TEST_F(BootstrapClientTest, AStarAllowsEveryHostAtItsPort) {
  BootstrapServerOptions other_options;
  other_options.cluster_token_file = token_.path();
  auto other = std::move(*BootstrapServer::start(other_options));
  const std::string port = other->address().substr(other->address().rfind(':'));
  options_.bootstrap_allow = {"*" + port};
  test::RegistryClient registry(other->address(), token_.path());
  ASSERT_EQ(registry.send(registry.registration("PUT", prefill(0, 1, 1))).status, 200);
  start_client();
  EXPECT_TRUE(resolve(other->address(), "p").rows);
  // Another port, one that ends alike, and none at all stay strangers.
  for (const std::string& stranger : {std::string("127.0.0.1:1"), "127.0.0.1:1" + port.substr(1),
                                      std::string("127.0.0.1"), std::string()}) {
    const auto answer = resolve(stranger, "p");
    ASSERT_FALSE(answer.rows);
    EXPECT_EQ(answer.rows.error().code, FailureCode::kUnauthorized) << stranger;
  }
}

TEST_F(BootstrapClientTest, RegistriesThatRequestsNameAreLimited) {
  options_.bootstrap_allow = {"*:9"};
  options_.max_peers = 2;
  start_client();  // one is configured
  EXPECT_TRUE(client_->keep_paired("127.0.0.2:9"));
  const Status third = client_->keep_paired("127.0.0.3:9");
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, FailureCode::kTableFull);
  EXPECT_THAT(third.error().what, HasSubstr("max_peers = 2"));
  EXPECT_TRUE(client_->keep_paired("127.0.0.2:9"));
}

TEST_F(BootstrapClientTest, AnUnreachableRegistryFailsTheRoomAndNothingElse) {
  const std::string address = server_->address();
  server_.reset();
  options_.http_total_timeout_ms = 1'000;
  start_client();
  const auto answer = resolve(address, "p");
  ASSERT_FALSE(answer.rows);
  EXPECT_EQ(answer.rows.error().code, FailureCode::kBootstrapFailed);
  EXPECT_FALSE(client_->readiness_problems().empty());
  start_server(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  put(prefill(0, 1, 1));
  EXPECT_TRUE(resolve(address, "p").rows);
  EXPECT_TRUE(await_registered());
}

TEST_F(BootstrapClientTest, AWrongTokenIsSaidAtOnce) {
  const test::TempFile other("a-token-of-another-one\n");
  tokens_ = std::move(*ClusterTokens::load(other.path()));
  start_client();
  const auto answer = resolve(server_->address(), "p");
  ASSERT_FALSE(answer.rows);
  EXPECT_EQ(answer.rows.error().code, FailureCode::kUnauthorized);
  ASSERT_TRUE(test::await([&] {
    const auto problems = client_->readiness_problems();
    return !problems.empty() && problems.front().find("refused") != std::string::npos;
  }));
}

TEST_F(BootstrapClientTest, ReportsThePairsAndTheirChanges) {
  put(prefill(0, 1, 1));
  start_client();
  ASSERT_TRUE(client_->keep_paired(server_->address()));
  auto wanted = next<core::PairsWanted>();
  ASSERT_TRUE(wanted.has_value());
  ASSERT_EQ(wanted->rows.size(), 1U);
  EXPECT_EQ(wanted->rows[0].address.endpoint, "prefill:0");
  auto restarted = prefill(0, 1, 2);
  restarted.public_key = std::string(40, 'c');
  put(restarted);
  wanted = next<core::PairsWanted>();
  ASSERT_TRUE(wanted.has_value());
  ASSERT_EQ(wanted->rows.size(), 1U);
  EXPECT_EQ(wanted->rows[0].address.public_key, restarted.public_key);
}

TEST_F(BootstrapClientTest, ARefusedKeyIsLookedUp) {
  options_.lease_ms = 60'000;
  start_client();
  ASSERT_TRUE(await_registered());
  ASSERT_TRUE(test::await([&] { return keys_.is_allowed(kKeyA, monotonic_now()); }));
  put(prefill(0, 1, 1));
  EXPECT_FALSE(keys_.is_allowed(kKeyB, monotonic_now()));
  client_->refresh_keys();
  EXPECT_TRUE(test::await([&] { return keys_.is_allowed(kKeyB, monotonic_now()); }));
}

TEST_F(BootstrapClientTest, TakesARankOverWhenTheLeaseOfItsFormerLifeEnds) {
  auto former = self_;
  former.endpoint = "decode:2";
  former.incarnation = Incarnation{1, 1};
  ASSERT_EQ(registry_->send(registry_->registration("PUT", former, 1'000)).status, 200);
  start_client();
  ASSERT_TRUE(test::await([&] {
    const auto problems = client_->readiness_problems();
    return !problems.empty() && problems.front().find("decode:2") != std::string::npos;
  }));
  EXPECT_TRUE(await_registered());
}

TEST_F(BootstrapClientTest, QuestionsHaveALimit) {
  options_.max_rooms = 1;
  options_.http_total_timeout_ms = 20'000;
  start_client();
  client_->resolve({core::ReceiverId(1), server_->address(), "p", 0});
  client_->resolve({core::ReceiverId(2), server_->address(), "p", 0});
  const auto refused = next<core::PrefillResolved>();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->receiver, core::ReceiverId(2));
  EXPECT_EQ(refused->rows.error().code, FailureCode::kQueueFull);
}

TEST_F(BootstrapClientTest, StopsWhileARegistryHangs) {
  // A registry that takes connections and never answers.
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  socklen_t length = sizeof address;
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  options_.bootstrap_addresses = {"127.0.0.1:" + std::to_string(ntohs(address.sin_port))};
  options_.http_try_timeout_ms = 60'000;
  options_.http_total_timeout_ms = 60'000;
  start_client();
  pollfd ready{listener, POLLIN, 0};
  ASSERT_EQ(::poll(&ready, 1, 20'000), 1);
  client_->stop();  // returns long before the try would: else the test's own limit ends it
  ::close(listener);
}

// A registry that is away is no reason for rooms between peers that have a session to fail.
TEST_F(BootstrapClientTest, ASilentRegistrysLastWordHoldsForPeersThatAreNotLost) {
  put(prefill(0, 1, 1));
  options_.http_total_timeout_ms = 60'000;
  start_client();
  const std::string address = server_->address();
  ASSERT_TRUE(resolve(address, "").rows);
  server_.reset();
  client_->invalidate("decode:9");  // somebody else's connection broke
  const auto recalled = resolve(address, "");
  ASSERT_TRUE(recalled.rows) << recalled.rows.error().what;
  EXPECT_EQ(recalled.rows->front().address.endpoint, "prefill:0");
  EXPECT_GE(client_->counters().recalled, 1U);
}

TEST_F(BootstrapClientTest, ALostPeersRowIsNotRecalled) {
  put(prefill(0, 1, 1));
  start_client();
  const std::string address = server_->address();
  ASSERT_TRUE(resolve(address, "").rows);
  server_.reset();
  client_->invalidate("prefill:0");
  const auto refused = resolve(address, "");
  ASSERT_FALSE(refused.rows);
  EXPECT_EQ(refused.rows.error().code, FailureCode::kBootstrapFailed);
  EXPECT_EQ(client_->counters().recalled, 0U);
}

// Two registries of one fleet: the second one stands in for the first.
class TwoRegistries : public BootstrapClientTest {
 protected:
  TwoRegistries() {
    BootstrapServerOptions options;
    options.cluster_token_file = token_.path();
    other_ = std::move(*BootstrapServer::start(options));
    first_ = server_->address();
    options_.bootstrap_addresses = {first_, other_->address()};
  }
  void put_at_other(const core::RegistryRow& row) {
    test::RegistryClient client(other_->address(), token_.path());
    ASSERT_EQ(client.send(client.registration("PUT", row)).status, 200);
  }
  std::unique_ptr<BootstrapServer> other_;
  std::string first_;
};

TEST_F(TwoRegistries, ARoomOfADeadRegistryIsAnsweredByTheOther) {
  put_at_other(prefill(0, 1, 1));
  options_.http_total_timeout_ms = 60'000;
  start_client();
  ASSERT_TRUE(await_registered());
  server_.reset();
  const auto answer = resolve(first_, "");
  ASSERT_TRUE(answer.rows) << answer.rows.error().what;
  EXPECT_EQ(answer.rows->front().address, (PeerAddress{"prefill:0", kKeyB}));
}

TEST_F(TwoRegistries, WhoIsListedByTheOtherOnlyIsFound) {
  put_at_other(prefill(0, 1, 1));
  options_.http_total_timeout_ms = 60'000;
  start_client();
  EXPECT_TRUE(resolve(first_, "").rows);
}

TEST_F(TwoRegistries, WhenNoneKnowsTheNamedOneSaysWhy) {
  start_client();
  const auto answer = resolve(first_, "");
  ASSERT_FALSE(answer.rows);
  EXPECT_EQ(answer.rows.error().code, FailureCode::kPrefillUnknown);
  EXPECT_THAT(answer.rows.error().what, HasSubstr(first_));
}

TEST_F(TwoRegistries, ARegistryThatARequestBringsIsAskedAlone) {
  put_at_other(prefill(0, 1, 1));
  options_.bootstrap_addresses = {other_->address()};
  options_.bootstrap_allow = {first_};
  start_client();
  const auto answer = resolve(first_, "");
  ASSERT_FALSE(answer.rows);
  EXPECT_EQ(answer.rows.error().code, FailureCode::kPrefillUnknown);
}

}  // namespace
}  // namespace kvferry::runtime
