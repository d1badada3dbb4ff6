#include "runtime/registry_channel.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <optional>
#include <utility>

namespace kvferry::runtime {
namespace {

constexpr std::uint64_t kMaxAnswerBytes = 64U << 20;
// The client's own deadline comes first; this one only guards against a client that forgets its
// own.
constexpr std::chrono::milliseconds kSlack{500};

}  // namespace

struct RegistryChannel::Exchange {
  std::mutex mutex;
  std::condition_variable changed;
  net::HttpResponse response;
  std::optional<Status> end;
  bool interrupted = false;
};

RegistryChannel::RegistryChannel(std::string address, net::HttpClient& client,
                                 ClusterTokens& tokens)
    : address_(std::move(address)), client_(client), tokens_(tokens) {}

RegistryChannel::~RegistryChannel() = default;

Result<net::HttpResponse> RegistryChannel::exchange(std::string method, std::string target,
                                                    std::string body, std::uint32_t timeout_ms) {
  net::HttpRequest request;
  request.method = std::move(method);
  request.target = std::move(target);
  request.body = std::move(body);
  if (!request.body.empty()) {
    request.headers.set("Content-Type", "application/json");
  }
  sign_request(request, tokens_);

  auto exchange = std::make_shared<Exchange>();
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) {
      return fail(FailureCode::kShuttingDown, fmt::format("registry {}: not asked", address_));
    }
    current_ = exchange;
  }
  net::HttpCallOptions options;
  options.address = address_;
  options.connect_timeout_ms = timeout_ms;
  options.total_timeout_ms = timeout_ms;
  options.max_body_bytes = kMaxAnswerBytes;
  net::HttpCallbacks callbacks;
  callbacks.on_head = [exchange](const net::HttpResponse& head) {
    std::lock_guard lock(exchange->mutex);
    exchange->response = head;
  };
  callbacks.on_data = [exchange](std::string_view data) {
    std::lock_guard lock(exchange->mutex);
    exchange->response.body.append(data);
  };
  callbacks.on_end = [exchange](Status status) {
    std::lock_guard lock(exchange->mutex);
    exchange->end = std::move(status);
    exchange->changed.notify_all();
  };
  const auto call = client_.call(std::move(options), std::move(request), std::move(callbacks));

  std::unique_lock lock(exchange->mutex);
  exchange->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms) + kSlack,
                             [&] { return exchange->end.has_value() || exchange->interrupted; });
  if (!exchange->end) {
    lock.unlock();
    call->cancel();
    return fail(FailureCode::kBootstrapFailed,
                fmt::format("registry {} did not answer in {} ms", address_, timeout_ms),
                FailureWhere::kPath, address_);
  }
  if (!*exchange->end) {
    return fail(FailureCode::kBootstrapFailed,
                fmt::format("registry {}: {}", address_, exchange->end->error().what),
                FailureWhere::kPath, address_);
  }
  return std::move(exchange->response);
}

void RegistryChannel::interrupt() {
  std::shared_ptr<Exchange> exchange;
  {
    std::lock_guard lock(mutex_);
    interrupted_ = true;
    exchange = current_;
  }
  if (exchange == nullptr) {
    return;
  }
  std::lock_guard lock(exchange->mutex);
  exchange->interrupted = true;
  exchange->changed.notify_all();
}

void RegistryChannel::resume() {
  std::lock_guard lock(mutex_);
  interrupted_ = false;
  current_.reset();
}

}  // namespace kvferry::runtime
