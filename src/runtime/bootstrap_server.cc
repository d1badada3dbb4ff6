#include "kvferry/bootstrap_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <exception>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/loopback.h"
#include "core/bootstrap_registry.h"
#include "net/http_server.h"
#include "runtime/cluster_tokens.h"
#include "runtime/json.h"
#include "runtime/nonce_table.h"
#include "runtime/registry_metrics.h"

namespace kvferry {
namespace {

using net::HttpRequest;
using net::HttpResponse;

constexpr std::int64_t kToleranceS = 300;
constexpr std::size_t kMaxNonces = 262'144;
constexpr std::size_t kNonceDigits = 32;
// A lease shorter than its renewals can be is of no use, one of days hides a dead rank.
constexpr std::uint32_t kMinLeaseMs = 100;
constexpr std::uint32_t kMaxLeaseMs = 3'600'000;

template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && stop == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

HttpResponse error_response(int status, const Failure& failure) {
  return net::json_response(status, runtime::encode_error(failure));
}

HttpResponse error_response(int status, FailureCode code, std::string what) {
  return error_response(status, Failure{code, FailureWhere::kLocal, std::move(what), {}, -1});
}

HttpResponse not_allowed(std::string_view methods) {
  HttpResponse response = error_response(405, FailureCode::kInvalidArgument,
                                         fmt::format("this path takes {}", methods));
  response.headers.set("Allow", std::string(methods));
  return response;
}

class BootstrapServerImpl final : public BootstrapServer {
 public:
  BootstrapServerImpl(const BootstrapServerOptions& options,
                      std::unique_ptr<runtime::ClusterTokens> tokens)
      : tokens_(std::move(tokens)),
        registry_({options.max_rows, options.max_superseded}),
        nonces_(kMaxNonces, kToleranceS) {}
  ~BootstrapServerImpl() override { stop(); }
  BootstrapServerImpl(const BootstrapServerImpl&) = delete;
  BootstrapServerImpl& operator=(const BootstrapServerImpl&) = delete;

  Status listen(const BootstrapServerOptions& options);
  std::string address() const override { return address_; }
  void stop() override;

 private:
  HttpResponse answer(const HttpRequest& request);
  HttpResponse ranks(const HttpRequest& request);
  HttpResponse change(const HttpRequest& request);
  HttpResponse list(const HttpRequest& request);
  Status authenticate(const HttpRequest& request);
  HttpResponse unauthorized(std::string what);
  std::string metrics();

  std::unique_ptr<runtime::ClusterTokens> tokens_;
  std::string address_;

  std::mutex mutex_;
  core::BootstrapRegistry registry_;
  runtime::NonceTable nonces_;
  log::RateLimit unauthorized_limit_;

  std::atomic<bool> stopping_{false};
  runtime::RegistryMetrics metrics_;

  std::mutex stop_mutex_;
  std::unique_ptr<net::HttpServer> server_;
};

Status BootstrapServerImpl::listen(const BootstrapServerOptions& options) {
  net::HttpServerConfig config;
  config.host = options.host;
  config.port = options.port;
  config.max_body_bytes = options.max_body_bytes;
  Result<std::unique_ptr<net::HttpServer>> server = net::HttpServer::start(
      std::move(config),
      [this](const HttpRequest& request, const std::shared_ptr<net::Responder>& responder) {
        try {
          responder->respond(answer(request));
        } catch (const std::exception& error) {
          // The responder that is dropped on the way answers 500.
          log::error("a request failed: {}", error.what());
        }
      });
  if (!server) {
    return tl::unexpected(server.error());
  }
  server_ = std::move(*server);
  address_ = server_->address();
  return {};
}

void BootstrapServerImpl::stop() {
  stopping_.store(true, std::memory_order_release);
  std::lock_guard lock(stop_mutex_);
  if (server_ != nullptr) {
    server_->stop();
    server_.reset();
  }
}

HttpResponse BootstrapServerImpl::answer(const HttpRequest& request) {
  metrics_.request_arrived();
  const std::string_view path = request.path();
  if (path == "/v1/ranks") {
    return ranks(request);
  }
  const bool known =
      path == "/health" || path == "/livez" || path == "/readyz" || path == "/metrics";
  if (!known) {
    return error_response(404, FailureCode::kInvalidArgument, "no such path");
  }
  if (request.method != "GET" && request.method != "HEAD") {
    return not_allowed("GET");
  }
  if (path == "/metrics") {
    return net::text_response(200, metrics(), "text/plain; version=0.0.4");
  }
  if (path != "/livez" && stopping_.load(std::memory_order_acquire)) {
    return error_response(503, FailureCode::kShuttingDown, "the registry stops");
  }
  return net::text_response(200, "ok\n");
}

HttpResponse BootstrapServerImpl::ranks(const HttpRequest& request) {
  if (request.method != "GET" && request.method != "PUT" && request.method != "DELETE") {
    return not_allowed("GET, PUT, DELETE");
  }
  if (Status status = authenticate(request); !status) {
    return unauthorized(status.error().what);
  }
  return request.method == "GET" ? list(request) : change(request);
}

Status BootstrapServerImpl::authenticate(const HttpRequest& request) {
  if (!tokens_->enabled()) {
    return {};
  }
  const auto refuse = [](std::string what) {
    return fail(FailureCode::kUnauthorized, std::move(what));
  };
  const std::string_view time_text = request.headers.get(runtime::kTimeHeader);
  const std::string_view nonce = request.headers.get(runtime::kNonceHeader);
  const std::optional<std::int64_t> time = to_number<std::int64_t>(time_text);
  if (!time || nonce.size() != kNonceDigits) {
    return refuse(fmt::format("the request needs {}, {} and {}", runtime::kTimeHeader,
                              runtime::kNonceHeader, runtime::kSignatureHeader));
  }
  // The signature first: only who knows the token may take a place in the table of nonces.
  if (!tokens_->verify(runtime::request_text(request, time_text, nonce),
                       request.headers.get(runtime::kSignatureHeader))) {
    return refuse("the request's signature is wrong: is the cluster token the same?");
  }
  const std::int64_t now = runtime::unix_seconds();
  std::lock_guard lock(mutex_);
  switch (nonces_.check(*time, nonce, now)) {
    case runtime::NonceTable::Verdict::kFresh:
      return {};
    case runtime::NonceTable::Verdict::kOutsideTolerance:
      return refuse(fmt::format("the request's time is {} s off, {} s are tolerated", now - *time,
                                kToleranceS));
    case runtime::NonceTable::Verdict::kReplayed:
      metrics_.replayed();
      return refuse("the request was seen before");
  }
  return {};
}

HttpResponse BootstrapServerImpl::unauthorized(std::string what) {
  metrics_.unauthorized();
  {
    std::lock_guard lock(mutex_);
    if (unauthorized_limit_.allow(monotonic_now())) {
      log::warning("unauthorized request: {} ({} further lines left out)", what,
                   unauthorized_limit_.suppressed());
    }
  }
  return error_response(401, FailureCode::kUnauthorized, std::move(what));
}

HttpResponse BootstrapServerImpl::change(const HttpRequest& request) {
  const Result<runtime::Registration> registration = runtime::decode_registration(request.body);
  if (!registration) {
    metrics_.malformed();
    return error_response(400, registration.error());
  }
  const core::RegistryRow& row = registration->row;
  if (!tokens_->verify(runtime::row_text(row), row.signature)) {
    return unauthorized("the row's signature is wrong");
  }
  const std::uint32_t lease_ms = std::clamp(registration->lease_ms, kMinLeaseMs, kMaxLeaseMs);
  Status status;
  {
    std::lock_guard lock(mutex_);
    const Instant now = monotonic_now();
    status = request.method == "PUT" ? registry_.put(row, now, milliseconds(lease_ms))
                                     : registry_.remove(row, now);
  }
  if (status) {
    return net::json_response(200, fmt::format("{{\"lease_ms\":{}}}", lease_ms));
  }
  if (status.error().code == FailureCode::kConflict) {
    metrics_.conflicted();
  }
  return error_response(http_status(status.error().code), status.error());
}

HttpResponse BootstrapServerImpl::list(const HttpRequest& request) {
  core::BootstrapRegistry::Query query;
  const std::string role = request.query("role");
  const std::string dp_rank = request.query("dp_rank");
  const std::string instance = request.query("instance");
  if (role == to_string(Role::kPrefill) || role == to_string(Role::kDecode)) {
    query.role = role == to_string(Role::kPrefill) ? Role::kPrefill : Role::kDecode;
  } else if (!role.empty()) {
    return error_response(400, FailureCode::kInvalidArgument, "role is prefill or decode");
  }
  if (!dp_rank.empty()) {
    query.dp_rank = to_number<std::uint32_t>(dp_rank);
    if (!query.dp_rank) {
      return error_response(400, FailureCode::kInvalidArgument, "dp_rank is a whole number");
    }
  }
  if (!instance.empty()) {
    query.instance = instance;
  }
  std::vector<core::RegistryRow> rows;
  {
    std::lock_guard lock(mutex_);
    rows = registry_.find(query, monotonic_now());
  }
  return net::json_response(200, runtime::encode_rows(rows));
}

std::string BootstrapServerImpl::metrics() {
  std::size_t rows = 0;
  {
    std::lock_guard lock(mutex_);
    rows = registry_.size(monotonic_now());
  }
  return metrics_.to_text(rows);
}

}  // namespace

Result<std::unique_ptr<BootstrapServer>> BootstrapServer::start(BootstrapServerOptions options) {
  if (options.cluster_token_file.empty() && !is_loopback_host(options.host)) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("the registry would listen on {} without a cluster token, and whoever "
                            "reaches it could register: set cluster_token_file, or bind 127.0.0.1",
                            options.host));
  }
  Result<std::unique_ptr<runtime::ClusterTokens>> tokens =
      runtime::ClusterTokens::load(options.cluster_token_file);
  if (!tokens) {
    return tl::unexpected(tokens.error());
  }
  auto server = std::make_unique<BootstrapServerImpl>(options, std::move(*tokens));
  if (Status status = server->listen(options); !status) {
    return tl::unexpected(status.error());
  }
  return server;
}

}  // namespace kvferry
