// The router against servers that answer as the test tells them.
#include "router/router.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "net/http_client.h"
#include "net/http_server.h"
#include "router/json.h"

namespace kvferry::router {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Generous: only a hang takes this long.
constexpr seconds kDeadline{20};

bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// A prefill or decode server: ready, paired with every instance, and holding each request until the
// test takes it.
class FakeServer {
 public:
  struct Held {
    net::HttpRequest request;
    std::shared_ptr<net::Responder> reply;
    std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(false);
  };

  explicit FakeServer(std::string instance, std::uint16_t port = 0)
      : instance_(std::move(instance)) {
    net::HttpServerConfig config;
    config.port = port;
    auto server = net::HttpServer::start(
        config, [this](net::HttpRequest request, std::shared_ptr<net::Responder> reply) {
          handle(std::move(request), std::move(reply));
        });
    server_ = std::move(server.value());
  }

  std::string address() const { return server_->address(); }
  // What was written by then still leaves.
  void stop(std::uint32_t drain_ms = 0) { server_->stop(drain_ms); }
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return count_;
  }

  // The next request that came in.
  Held take() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(arrived_.wait_for(lock, kDeadline, [&] { return !held_.empty(); }));
    Held held = std::move(held_.front());
    held_.pop_front();
    return held;
  }

 private:
  void handle(net::HttpRequest request, std::shared_ptr<net::Responder> reply) {
    const std::string path(request.path());
    if (path == "/readyz") {
      return reply->respond(net::json_response(
          200, JsonObject().boolean("ready", true).text("instance", instance_).str()));
    }
    if (path == "/v1/kvferry/pairs") {
      return reply->respond(net::json_response(
          200, R"({"pairs":[{"instance":"p0","ready":true},{"instance":"p1","ready":true}]})"));
    }
    if (path == "/v1/models") {
      return reply->respond(net::json_response(200, R"({"object":"list","data":[]})"));
    }
    Held held{std::move(request), std::move(reply)};
    held.reply->on_disconnect([gone = held.gone] { gone->store(true); });
    std::lock_guard lock(mutex_);
    held_.push_back(std::move(held));
    ++count_;
    arrived_.notify_all();
  }

  std::string instance_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Held> held_;
  std::size_t count_ = 0;
  std::unique_ptr<net::HttpServer> server_;
};

// One client request, answered in full or not.
struct Client {
  std::shared_ptr<net::HttpCall> call;
  std::mutex mutex;
  net::HttpResponse response;
  bool ended = false;
  bool failed = false;

  bool has_ended() {
    std::lock_guard lock(mutex);
    return ended;
  }
  std::string body() {
    std::lock_guard lock(mutex);
    return response.body;
  }
};

class RouterTest : public testing::Test {
 protected:
  void start(std::vector<std::string> prefill, std::vector<std::string> decode,
             std::size_t ready_pairs, const std::function<void(RouterOptions&)>& change = {}) {
    RouterOptions options;
    options.prefill = std::move(prefill);
    options.decode = std::move(decode);
    options.bootstrap = "127.0.0.1:9";
    options.poll_interval_ms = 20;
    if (change) change(options);
    auto router = Router::start(options);
    ASSERT_TRUE(router) << router.error().what;
    router_ = std::move(*router);
    ASSERT_TRUE(eventually([&] {
      const auto table = JsonDocument::parse(get("/v1/kvferry/pairs").body);
      return table &&
             table->root()["ready_pairs"].integer() == static_cast<std::int64_t>(ready_pairs);
    })) << get("/v1/kvferry/pairs").body;
  }
  void start_one() { start({prefill_.address()}, {decode_.address()}, 1); }

  net::HttpCallOptions to_router() {
    net::HttpCallOptions options;
    options.address = router_->address();
    options.total_timeout_ms = 20'000;
    return options;
  }
  net::HttpResponse get(const std::string& target) {
    net::HttpRequest request;
    request.target = target;
    const auto response = client_->fetch(to_router(), request);
    return response ? *response : net::HttpResponse{0, {}, response.error().what};
  }
  std::shared_ptr<Client> post(std::string body = R"({"prompt":"x"})",
                               const std::string& target = "/v1/completions") {
    net::HttpRequest request;
    request.method = "POST";
    request.target = target;
    request.body = std::move(body);
    auto client = std::make_shared<Client>();
    net::HttpCallbacks callbacks;
    callbacks.on_head = [client](const net::HttpResponse& head) {
      std::lock_guard lock(client->mutex);
      client->response = head;
    };
    callbacks.on_data = [client](std::string_view data) {
      std::lock_guard lock(client->mutex);
      client->response.body += data;
    };
    callbacks.on_end = [client](const Status& status) {
      std::lock_guard lock(client->mutex);
      client->ended = true;
      client->failed = !status;
    };
    client->call = client_->call(to_router(), std::move(request), std::move(callbacks));
    return client;
  }
  static void await(const std::shared_ptr<Client>& client) {
    ASSERT_TRUE(eventually([&] { return client->has_ended(); }));
  }
  static std::string code(const std::shared_ptr<Client>& client) {
    const auto document = JsonDocument::parse(client->body());
    return document ? document->root()["error"]["code"].text().value_or("") : client->body();
  }
  static std::string field(const FakeServer::Held& held, std::string_view name) {
    const auto document = JsonDocument::parse(held.request.body);
    return document ? document->root()[name].text().value_or("") : "";
  }

  FakeServer prefill_{"p0"};
  FakeServer decode_{""};
  std::unique_ptr<net::HttpClient> client_ = net::HttpClient::start(1);
  std::unique_ptr<Router> router_;
};

TEST_F(RouterTest, BothServersGetTheSameNamesAndDecodeAnswers) {
  start_one();
  const auto client = post(R"({"prompt":"hello","n":1})", "/v1/chat/completions");
  const auto at_prefill = prefill_.take();
  const auto at_decode = decode_.take();
  EXPECT_EQ(at_prefill.request.target, "/v1/chat/completions");
  EXPECT_EQ(at_prefill.request.body, at_decode.request.body);
  EXPECT_EQ(field(at_decode, "kvferry_prefill"), "p0");
  EXPECT_EQ(field(at_decode, "bootstrap_host"), "127.0.0.1");
  at_decode.reply->respond(net::json_response(200, R"({"text":"hi"})"));
  await(client);
  EXPECT_EQ(client->response.status, 200);
  EXPECT_EQ(client->response.body, R"({"text":"hi"})");
  EXPECT_EQ(client->response.headers.get("x-kvferry-binding"), field(at_decode, "kvferry_binding"));
  EXPECT_FALSE(client->response.headers.get("x-kvferry-room").empty());
  // Prefill is left alone to finish what decode has already confirmed.
  at_prefill.reply->respond(net::json_response(200, "{}"));
}

TEST_F(RouterTest, StreamsPieceByPiece) {
  start_one();
  const auto client = post();
  const auto at_decode = decode_.take();
  net::HttpResponse head;
  head.headers.set("content-type", "text/event-stream");
  at_decode.reply->begin_stream(head);
  at_decode.reply->write("data: 1\n\n");
  ASSERT_TRUE(eventually([&] { return client->body() == "data: 1\n\n"; }));
  at_decode.reply->write("data: [DONE]\n\n");
  at_decode.reply->end();
  await(client);
  EXPECT_FALSE(client->failed);
  EXPECT_EQ(client->response.body, "data: 1\n\ndata: [DONE]\n\n");
  EXPECT_EQ(client->response.headers.get("content-type"), "text/event-stream");
}

TEST_F(RouterTest, PrefillsErrorEndsTheRequestAndCancelsDecode) {
  start_one();
  const auto client = post();
  const auto at_decode = decode_.take();
  prefill_.take().reply->respond(
      net::json_response(400, R"({"error":{"code":"too-long","message":"m"}})"));
  await(client);
  EXPECT_EQ(client->response.status, 400);
  EXPECT_EQ(code(client), "too-long");
  EXPECT_TRUE(eventually([&] { return at_decode.gone->load(); }));
  EXPECT_EQ(get("/readyz").status, 200);
  // A caller's mistake counts against no server.
  EXPECT_NE(get("/metrics").body.find("kvferry_router_ready_pairs 1"), std::string::npos);
}

TEST_F(RouterTest, DecodesErrorIsPassedOnAndCancelsPrefill) {
  start_one();
  const auto client = post();
  const auto at_prefill = prefill_.take();
  decode_.take().reply->respond(
      net::json_response(503, R"({"error":{"code":"quarantine-full","message":"m"}})"));
  await(client);
  EXPECT_EQ(client->response.status, 503);
  EXPECT_EQ(code(client), "quarantine-full");
  EXPECT_TRUE(eventually([&] { return at_prefill.gone->load(); }));
}

TEST_F(RouterTest, ClientsEndCancelsBoth) {
  start_one();
  const auto client = post();
  const auto at_prefill = prefill_.take();
  const auto at_decode = decode_.take();
  client->call->cancel();
  EXPECT_TRUE(eventually([&] { return at_prefill.gone->load() && at_decode.gone->load(); }));
  EXPECT_TRUE(eventually([&] {
    return get("/metrics").body.find("kvferry_router_client_gone_total 1") != std::string::npos;
  }));
}

TEST_F(RouterTest, ABrokenStreamEndsWithAnErrorEvent) {
  start_one();
  const auto client = post();
  {
    auto at_decode = decode_.take();
    net::HttpResponse head;
    head.headers.set("content-type", "text/event-stream");
    at_decode.reply->begin_stream(head);
    at_decode.reply->write("data: 1\n\n");
    ASSERT_TRUE(eventually([&] { return !client->body().empty(); }));
  }  // dropped: the connection breaks
  await(client);
  EXPECT_NE(client->response.body.find("\"error\""), std::string::npos) << client->response.body;
  EXPECT_EQ(client->response.body.find("[DONE]"), std::string::npos);
}

TEST_F(RouterTest, RefusesBadBodiesWithTheirPosition) {
  start_one();
  for (const char* body : {"{\"prompt\": }", "[1]", R"({"bootstrap_room":1})"}) {
    const auto client = post(body);
    await(client);
    EXPECT_EQ(client->response.status, 400) << body;
    EXPECT_EQ(code(client), "invalid_request");
  }
  EXPECT_EQ(prefill_.count() + decode_.count(), 0U);
}

TEST_F(RouterTest, RefusesBeyondItsLimitAndWhileItDrains) {
  start({prefill_.address()}, {decode_.address()}, 1,
        [](RouterOptions& options) { options.max_in_flight = 1; });
  const auto first = post();
  const auto at_decode = decode_.take();
  const auto second = post();
  await(second);
  EXPECT_EQ(second->response.status, 503);
  EXPECT_EQ(code(second), "too_many_requests");

  std::thread drain([&] { router_->drain(20'000); });
  ASSERT_TRUE(eventually([&] { return get("/readyz").status == 503; }));
  const auto third = post();
  await(third);
  EXPECT_EQ(third->response.status, 503);
  EXPECT_EQ(code(third), "draining");
  at_decode.reply->respond(net::json_response(200, "{}"));
  drain.join();
  await(first);
  EXPECT_EQ(first->response.status, 200);
}

TEST_F(RouterTest, SaysWhyNoPairIsReady) {
  FakeServer gone{"p1"};
  const std::string address = gone.address();
  gone.stop();
  start({address}, {decode_.address()}, 0);
  ASSERT_TRUE(eventually(
      [&] { return get("/v1/kvferry/pairs").body.find("refused") != std::string::npos; }));
  const auto client = post();
  await(client);
  EXPECT_EQ(client->response.status, 503);
  EXPECT_EQ(code(client), "no_pair_ready");
  EXPECT_NE(client->response.body.find("no prefill server is ready: " + address), std::string::npos)
      << client->response.body;
  // Missing servers are no fault of the router's.
  EXPECT_EQ(get("/readyz").status, 200);
  EXPECT_EQ(get("/livez").status, 200);
  // Decode may not have been asked yet.
  EXPECT_TRUE(eventually([&] { return get("/v1/models").status == 200; }));
}

TEST_F(RouterTest, AFailedConnectionIsTriedOnceMoreUnderNewNames) {
  FakeServer other{"p1"};
  // Polls are rare, so the router still believes in a server that has gone.
  start({prefill_.address(), other.address()}, {decode_.address()}, 2,
        [](RouterOptions& options) { options.poll_interval_ms = 60'000; });
  prefill_.stop();
  const auto first = post();
  const auto second = post();  // one of the two meets the server that has gone
  std::vector<std::string> bindings;
  for (int i = 0; i < 2; ++i) {
    const auto at_prefill = other.take();
    EXPECT_EQ(field(at_prefill, "kvferry_prefill"), "p1");
    bindings.push_back(field(at_prefill, "kvferry_binding"));
    at_prefill.reply->respond(net::json_response(200, "{}"));
  }
  EXPECT_NE(bindings[0], bindings[1]);
  // Decode saw the first try's names too; its client is gone.
  for (int answered = 0; answered < 2;) {
    const auto held = decode_.take();
    const std::string binding = field(held, "kvferry_binding");
    if (binding != bindings[0] && binding != bindings[1]) continue;
    held.reply->respond(net::json_response(200, "{}"));
    ++answered;
  }
  await(first);
  await(second);
  EXPECT_EQ(first->response.status, 200);
  EXPECT_EQ(second->response.status, 200);
  EXPECT_NE(get("/metrics").body.find("kvferry_router_retries_total 1"), std::string::npos);
}

TEST_F(RouterTest, ARequestWhoseServerDiesMovesToAnotherPairOnce) {
  FakeServer other{"p1"};
  start({prefill_.address(), other.address()}, {decode_.address()}, 2);
  const auto client = post();
  const auto first = decode_.take();
  FakeServer& dying = field(first, "kvferry_prefill") == "p0" ? prefill_ : other;
  const auto held = dying.take();
  dying.stop();
  const auto second = decode_.take();
  EXPECT_NE(field(first, "kvferry_prefill"), field(second, "kvferry_prefill"));
  EXPECT_NE(field(first, "kvferry_binding"), field(second, "kvferry_binding"));
  EXPECT_TRUE(eventually([&] { return first.gone->load(); }));
  // The second server of the request dies too: there is no third try.
  FakeServer& last = &dying == &prefill_ ? other : prefill_;
  const auto last_held = last.take();
  last.stop();
  await(client);
  EXPECT_EQ(client->response.status, 502);
  EXPECT_TRUE(eventually([&] { return second.gone->load(); }));
  EXPECT_EQ(prefill_.count() + other.count(), 2U);
}

TEST_F(RouterTest, WithoutAnotherPairALostServerIs502) {
  start_one();
  const auto client = post();
  const auto at_prefill = prefill_.take();
  prefill_.stop();
  await(client);
  EXPECT_EQ(client->response.status, 502);
  EXPECT_NE(code(client), "");
}

TEST_F(RouterTest, HalfAnAnswerIsNeitherPassedOnNorRepeated) {
  FakeServer other{""};
  start({prefill_.address()}, {decode_.address(), other.address()}, 2);
  const auto client = post();
  ASSERT_TRUE(eventually([&] { return decode_.count() + other.count() == 1; }));
  FakeServer& chosen = decode_.count() == 1 ? decode_ : other;
  const auto held = chosen.take();
  net::HttpResponse head;
  head.headers.set("content-type", "application/json");
  held.reply->begin_stream(head);
  held.reply->write("{\"text\":");
  chosen.stop(200);
  await(client);
  EXPECT_EQ(client->response.status, 502);
  EXPECT_EQ(decode_.count() + other.count(), 1U);
}

TEST_F(RouterTest, AnswersAfterTheRequestsWholeTime) {
  start({prefill_.address()}, {decode_.address()}, 1,
        [](RouterOptions& options) { options.request_timeout_ms = 50; });
  const auto client = post();
  await(client);
  EXPECT_EQ(client->response.status, 504);
  EXPECT_EQ(code(client), "request_timeout");
}

TEST_F(RouterTest, StopsWithRequestsUnderWay) {
  start_one();
  const auto client = post();
  const auto at_decode = decode_.take();
  router_->stop();
  await(client);
  EXPECT_TRUE(eventually([&] { return at_decode.gone->load(); }));
}

TEST_F(RouterTest, UnknownRoutesAndMethodsAreRefused) {
  start_one();
  EXPECT_EQ(get("/v1/nothing").status, 404);
  EXPECT_EQ(get("/v1/completions").status, 405);
  const auto client = post("{}", "/readyz");
  await(client);
  EXPECT_EQ(client->response.status, 405);
  EXPECT_EQ(client->response.headers.get("allow"), "GET");
}

TEST(RouterStart, RefusesBadOptionsAndAPortInUse) {
  RouterOptions options;
  EXPECT_FALSE(Router::start(options));
  options.prefill = {"127.0.0.1:1"};
  options.decode = {"127.0.0.1"};
  options.bootstrap = "127.0.0.1:2";
  EXPECT_FALSE(Router::start(options));
  options.decode = {"127.0.0.1:1"};
  auto first = Router::start(options);
  ASSERT_TRUE(first);
  const std::string address = (*first)->address();
  options.port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  const auto second = Router::start(options);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().what.find(std::to_string(options.port)), std::string::npos);
}

}  // namespace
}  // namespace kvferry::router
