// One address for clients of a fleet: pairs each request with a prefill and a decode server and
// passes decode's answer back.
//
// Routes: POST /v1/completions, /v1/chat/completions; GET /v1/models (of a ready server),
// /v1/kvferry/pairs (each pair with its state and reason), /health /livez /readyz /metrics. /readyz
// does not fall because servers are away (rule 18): requests then get 503 with the reasons.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvferry/status.h"

namespace kvferry::router {

struct RouterOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;                // 0: any free port
  std::vector<std::string> prefill;      // host:port of each prefill server
  std::vector<std::string> decode;       // host:port of each decode server
  std::string bootstrap;                 // host:port of the registry that decode servers may ask
  std::uint32_t poll_interval_ms = 250;  // between two questions to the same server
  std::uint32_t poll_timeout_ms = 2'000;
  std::uint32_t connect_timeout_ms = 1'000;
  std::uint32_t request_timeout_ms = 600'000;  // whole request; 504 after that
  std::uint32_t max_in_flight = 4'096;         // beyond: 503
  std::uint32_t max_body_bytes = 1U << 20;     // of a request; beyond: 413
  std::uint32_t max_answer_bytes = 16U << 20;  // of one answer
  std::uint32_t threads = 2;                   // of the HTTP server
};

class Router {
 public:
  // Servers need not be up yet. Fails on an option out of range or a port in use.
  static Result<std::unique_ptr<Router>> start(RouterOptions options);
  virtual ~Router() = default;              // as stop()
  virtual std::string address() const = 0;  // host:port
  // New requests are answered 503 and /readyz falls; returns when the running ones have ended or
  // after timeout_ms. The address stays open until stop().
  virtual void drain(std::uint32_t timeout_ms) = 0;
  virtual void stop() = 0;  // ends what is running; idempotent
};

}  // namespace kvferry::router
