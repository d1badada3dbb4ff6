// The registry of a fleet: an HTTP service in which ranks register their addresses and public keys
// under a lease, and in which decode finds the prefill ranks of a room. It never sees KV data.
//
// Routes (bodies are JSON; every request and every row carries an HMAC-SHA256 with the cluster
// token when one is set):
//   PUT    /v1/ranks      register or renew; 409 when the rank has another live owner or the
//                         incarnation was superseded; 401 on a wrong HMAC
//   GET    /v1/ranks      rows, filtered by ?role= &instance= &dp_rank=
//   DELETE /v1/ranks      an owner leaves
//   GET    /health /livez /readyz /metrics
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvferry/status.h"

namespace kvferry {

struct BootstrapServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;          // 0: any free port
  std::string cluster_token_file;  // empty: no HMAC, loopback only
  std::uint32_t max_rows = 65'536;
  std::uint32_t max_body_bytes = 65'536;
  std::uint32_t max_superseded = 65'536;  // incarnations remembered as replaced
};

class BootstrapServer {
 public:
  static Result<std::unique_ptr<BootstrapServer>> start(BootstrapServerOptions options);
  virtual ~BootstrapServer() = default;
  virtual std::string address() const = 0;  // host:port
  virtual void stop() = 0;                  // idempotent; joins its threads
};

}  // namespace kvferry
