// SGLang's bootstrap service as a part of an HTTP server: the routes, codes and texts of SGLang
// 0.5.23's own, for its prefill ranks to register at and its decode ranks to ask.
//
//   PUT  /route             a prefill rank registers
//   GET  /route             ?prefill_dp_rank=&prefill_cp_rank=&target_tp_rank=&target_pp_rank=
//                           all -1: the topology; else one rank's address
//   POST /register_dp_rank  a prefill rank says which DP rank has a room
//   POST /query_dp_ranks    decode asks that for a list of rooms
//   GET  /health            decode's heartbeat
//
// There is no authentication in SGLang's clients: who reaches the port can register ranks and move
// rooms. Bind it to a network of the fleet alone.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "base/instant.h"
#include "base/log.h"
#include "dialect/sglang/sglang_registry.h"
#include "kvferry/status.h"
#include "net/http.h"

namespace kvferry::sglang {

// Thread-safe: handlers of all server threads may call it. It never blocks on a peer.
class SglangRoutes {
 public:
  explicit SglangRoutes(RegistryLimits limits = {}) : registry_(limits) {}

  // None for a path that is not SGLang's: the server it is mounted in goes on with its own.
  std::optional<net::HttpResponse> answer(const net::HttpRequest& request, Instant now);

 private:
  net::HttpResponse put_route(const net::HttpRequest& request, Instant now);
  net::HttpResponse get_route(const net::HttpRequest& request);
  net::HttpResponse register_dp_rank(const net::HttpRequest& request, Instant now);
  net::HttpResponse query_dp_ranks(const net::HttpRequest& request, Instant now);
  net::HttpResponse not_ready() const;
  net::HttpResponse refused(const net::HttpRequest& request, const Failure& failure, Instant now);
  void warn(const net::HttpRequest& request, std::string_view what, Instant now);

  std::mutex mutex_;
  SglangRegistry registry_;
  log::RateLimit warning_limit_;
};

}  // namespace kvferry::sglang
