// One client request on its way through a pair: the same body goes to prefill and to decode, and
// decode's answer goes back to the client. Lives until the client has its answer or is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "net/http_client.h"
#include "net/http_server.h"
#include "router/fleet.h"
#include "router/metrics.h"
#include "router/request_body.h"

namespace kvferry::router {

struct ForwardContext {
  Fleet& fleet;
  net::HttpClient& client;
  Metrics& metrics;
  BootstrapAddress bootstrap;
  std::uint32_t connect_timeout_ms = 1'000;
  std::uint32_t request_timeout_ms = 600'000;
  std::uint64_t max_answer_bytes = 16U << 20;
};

// Thread-safe: callbacks come from the client's threads, the client's end from a server thread.
class Forward : public std::enable_shared_from_this<Forward> {
 public:
  // on_finished is called once, from any thread; the context outlives the forward.
  Forward(ForwardContext& context, net::HttpRequest request,
          std::shared_ptr<net::Responder> responder, std::function<void()> on_finished);

  // choice is counted in the fleet; the forward releases it.
  void start(Choice choice);
  // Closes both calls and answers with the failure, unless an answer is under way already.
  void stop(const Failure& why);

 private:
  enum class Phase {
    kWaiting,    // no byte of decode's answer yet
    kBuffering,  // an answer that is sent whole, so that half of it can't pass for all
    kStreaming,  // server-sent events, passed on as they come
    kFinished,
  };
  struct Try {
    std::uint32_t number = 0;
    Choice choice;
    TransferNames names;
    std::shared_ptr<net::HttpCall> prefill;
    std::shared_ptr<net::HttpCall> decode;
    int prefill_status = 0;
    net::HttpHeaders prefill_headers;
    std::string prefill_body;
    net::HttpResponse head;  // decode's; kBuffering collects its body
    std::chrono::steady_clock::time_point begun;
  };
  enum class Calls { kCancelBoth, kLeavePrefill };

  void begin(Choice choice, std::uint32_t number);
  net::HttpRequest request_for(const TransferNames& names, const Choice& choice) const;
  net::HttpCallbacks prefill_callbacks(std::uint32_t number);
  net::HttpCallbacks decode_callbacks(std::uint32_t number);

  void prefill_ended(std::uint32_t number, const Status& result);
  void decode_answered(std::uint32_t number, const net::HttpResponse& head);
  void decode_sent(std::uint32_t number, std::string_view data);
  void decode_ended(std::uint32_t number, const Status& result);
  void call_failed(std::uint32_t number, Role role, const Failure& failure);
  // The whole time of a request is over; the client reports that as it does a failed connection.
  bool is_overdue() const;
  bool retried(std::uint32_t number, Role role, const Failure& failure);
  void client_gone();

  // Moves to kFinished; false when another thread was first. Then the calls are ended, the pair is
  // released and on_finished is called; the caller sends the answer.
  bool finish(std::unique_lock<std::mutex>& lock, Calls calls);
  void answer(net::HttpResponse response, const TransferNames& names);

  ForwardContext& context_;
  const net::HttpRequest request_;
  const std::shared_ptr<net::Responder> responder_;
  std::function<void()> on_finished_;

  std::mutex mutex_;
  Phase phase_ = Phase::kWaiting;
  Try try_;  // the current one; callbacks of an earlier one are known by their number
};

}  // namespace kvferry::router
