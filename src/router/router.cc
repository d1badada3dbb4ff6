#include "router/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "router/fleet.h"
#include "router/forward.h"
#include "router/json.h"
#include "router/metrics.h"
#include "router/poller.h"
#include "router/request_body.h"

namespace kvferry::router {
namespace {

using Reply = std::shared_ptr<net::Responder>;

bool is_get_path(std::string_view path) {
  constexpr std::array<std::string_view, 6> kPaths = {
      "/v1/models", "/v1/kvferry/pairs", "/health", "/livez", "/readyz", "/metrics"};
  return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end();
}

class RouterImpl final : public Router {
 public:
  RouterImpl(RouterOptions options, BootstrapAddress bootstrap)
      : options_(std::move(options)),
        fleet_(options_.prefill, options_.decode),
        client_(net::HttpClient::start(1)),
        context_{fleet_,
                 *client_,
                 metrics_,
                 std::move(bootstrap),
                 options_.connect_timeout_ms,
                 options_.request_timeout_ms,
                 options_.max_answer_bytes} {}
  ~RouterImpl() override { stop(); }

  Status listen() {
    net::HttpServerConfig config;
    config.host = options_.host;
    config.port = options_.port;
    config.threads = options_.threads;
    config.max_body_bytes = options_.max_body_bytes;
    auto server = net::HttpServer::start(config, [this](net::HttpRequest request, Reply reply) {
      handle(std::move(request), std::move(reply));
    });
    if (!server) return tl::unexpected<Failure>(server.error());
    server_ = std::move(*server);
    poller_ = std::make_unique<Poller>(
        PollerConfig{options_.prefill, options_.decode, options_.poll_interval_ms,
                     options_.connect_timeout_ms, options_.poll_timeout_ms},
        *client_, fleet_);
    return {};
  }

  std::string address() const override { return server_->address(); }

  void drain(std::uint32_t timeout_ms) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    idle_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return forwards_.empty(); });
  }

  void stop() override {
    std::unordered_map<std::uint64_t, std::shared_ptr<Forward>> running;
    {
      std::lock_guard lock(mutex_);
      draining_ = true;
      if (std::exchange(stopped_, true)) return;
      running = forwards_;
    }
    const Failure why{FailureCode::kShuttingDown, FailureWhere::kLocal, "the router is stopping",
                      "", -1};
    for (const auto& [id, forward] : running) forward->stop(why);
    poller_.reset();
    // The answers that were just given still have to be written.
    if (server_) server_->stop(kLastWritesMs);
    client_.reset();
  }

 private:
  static constexpr std::uint32_t kLastWritesMs = 2'000;

  void handle(net::HttpRequest request, Reply reply) {
    const std::string path(request.path());
    if (path == "/v1/completions" || path == "/v1/chat/completions") {
      if (request.method != "POST") return refuse_method(*reply, "POST");
      return route(std::move(request), std::move(reply));
    }
    if (!is_get_path(path)) {
      return reply->respond(
          error_response(404, fmt::format("there is no {} on a router", path), "not_found"));
    }
    if (request.method != "GET" && request.method != "HEAD") return refuse_method(*reply, "GET");
    if (path == "/v1/models") return models(reply);
    if (path == "/v1/kvferry/pairs") {
      return reply->respond(net::json_response(200, fleet_.to_json()));
    }
    if (path == "/livez") return reply->respond(net::json_response(200, R"({"alive":true})"));
    if (path == "/metrics") {
      return reply->respond(net::text_response(
          200, metrics_.to_text(in_flight()) + fleet_.metrics(), "text/plain; version=0.0.4"));
    }
    readyz(*reply);
  }

  static void refuse_method(net::Responder& reply, const char* allowed) {
    net::HttpResponse response =
        error_response(405, fmt::format("this route takes {} only", allowed), "method_not_allowed");
    response.headers.set("allow", allowed);
    reply.respond(std::move(response));
  }

  std::size_t in_flight() {
    std::lock_guard lock(mutex_);
    return forwards_.size();
  }

  void readyz(net::Responder& reply) {
    bool draining = false;
    {
      std::lock_guard lock(mutex_);
      draining = draining_;
    }
    JsonObject answer;
    answer.boolean("ready", !draining)
        .text("role", "router")
        .integer("ready_pairs", static_cast<std::int64_t>(fleet_.ready_pairs()))
        .raw("problems", draining ? R"(["draining"])" : "[]");
    reply.respond(net::json_response(draining ? 503 : 200, answer.str()));
  }

  void refuse(net::Responder& reply, Refusal reason, std::string_view why, std::string_view code) {
    metrics_.refused(reason);
    metrics_.answered(503);
    net::HttpResponse response = error_response(503, why, code);
    response.headers.set("retry-after", "1");
    reply.respond(std::move(response));
  }

  void route(net::HttpRequest request, Reply reply) {
    metrics_.request_arrived();
    if (const Status checked = check_request_body(request.body); !checked) {
      metrics_.answered(400);
      return reply->respond(error_response(400, checked.error().what, "invalid_request"));
    }
    // The pair is chosen before the forward is listed, and given back where that is refused, so
    // that the two locks are never held together.
    auto choice = fleet_.choose();
    std::unique_lock lock(mutex_);
    if (draining_ || forwards_.size() >= options_.max_in_flight) {
      const bool draining = draining_;
      lock.unlock();
      if (choice) fleet_.release(*choice);
      if (draining) {
        return refuse(*reply, Refusal::kDraining, "the router is draining", "draining");
      }
      return refuse(*reply, Refusal::kBusy,
                    fmt::format("{} requests are in flight, which is the limit (max_in_flight)",
                                options_.max_in_flight),
                    "too_many_requests");
    }
    if (!choice) {
      lock.unlock();
      return refuse(*reply, Refusal::kNoPair, choice.error().what, "no_pair_ready");
    }
    const std::uint64_t id = next_id_++;
    auto forward = std::make_shared<Forward>(context_, std::move(request), std::move(reply),
                                             [this, id] { finished(id); });
    forwards_.emplace(id, forward);
    lock.unlock();
    forward->start(std::move(*choice));
  }

  void finished(std::uint64_t id) {
    std::shared_ptr<Forward> ended;  // destroyed after the lock is gone
    std::lock_guard lock(mutex_);
    const auto found = forwards_.find(id);
    if (found == forwards_.end()) return;
    ended = std::move(found->second);
    forwards_.erase(found);
    if (forwards_.empty()) idle_.notify_all();
  }

  void models(const Reply& reply) {
    const auto server = fleet_.any_ready_server();
    if (!server) {
      return refuse(*reply, Refusal::kNoPair, "no server is ready that could list its model",
                    "no_pair_ready");
    }
    struct Answer {
      net::HttpResponse response;
    };
    auto answer = std::make_shared<Answer>();
    net::HttpCallOptions options;
    options.address = *server;
    options.connect_timeout_ms = options_.connect_timeout_ms;
    options.total_timeout_ms = options_.poll_timeout_ms;
    net::HttpRequest request;
    request.target = "/v1/models";
    net::HttpCallbacks callbacks;
    callbacks.on_head = [answer](const net::HttpResponse& head) {
      answer->response = net::json_response(head.status, "");
    };
    callbacks.on_data = [answer](std::string_view data) { answer->response.body += data; };
    callbacks.on_end = [answer, reply](const Status& result) {
      reply->respond(
          result ? std::move(answer->response)
                 : error_response(502, result.error().what, to_string(result.error().code)));
    };
    client_->call(std::move(options), std::move(request), std::move(callbacks));
  }

  const RouterOptions options_;
  Metrics metrics_;
  Fleet fleet_;
  std::unique_ptr<net::HttpClient> client_;
  ForwardContext context_;

  std::mutex mutex_;
  std::condition_variable idle_;
  bool draining_ = false;
  bool stopped_ = false;
  std::uint64_t next_id_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Forward>> forwards_;

  std::unique_ptr<net::HttpServer> server_;
  std::unique_ptr<Poller> poller_;
};

Status check(RouterOptions& options) {
  const auto bad = [](std::string what) {
    return fail(FailureCode::kInvalidArgument, std::move(what));
  };
  if (options.prefill.empty()) return bad("at least one prefill server is needed (prefill)");
  if (options.decode.empty()) return bad("at least one decode server is needed (decode)");
  for (std::vector<std::string>* list : {&options.prefill, &options.decode}) {
    for (std::string& address : *list) {
      const auto parsed = parse_address(address);
      if (!parsed) return tl::unexpected<Failure>(parsed.error());
      address = fmt::format("{}:{}", parsed->host, parsed->port);
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Router>> Router::start(RouterOptions options) {
  if (const Status checked = check(options); !checked) {
    return tl::unexpected<Failure>(checked.error());
  }
  auto bootstrap = parse_address(options.bootstrap);
  if (!bootstrap) {
    Failure failure = bootstrap.error();
    failure.what = "bootstrap: " + failure.what;
    return tl::unexpected<Failure>(std::move(failure));
  }
  auto router = std::make_unique<RouterImpl>(std::move(options), std::move(*bootstrap));
  if (const Status listening = router->listen(); !listening) {
    return tl::unexpected<Failure>(listening.error());
  }
  return router;
}

}  // namespace kvferry::router
