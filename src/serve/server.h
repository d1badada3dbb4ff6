// One serving process: an engine in the role of prefill, decode or both, with its HTTP API. The
// entry point of `kvferry serve`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kvferry/options.h"
#include "kvferry/status.h"
#include "serve/http_api.h"
#include "serve/llama_engine.h"
#include "serve/synthetic_engine.h"

namespace kvferry::serve {

enum class EngineKind : std::uint8_t { kLlama, kSynthetic };

struct ServeOptions {
  ServeRole role = ServeRole::kBoth;
  std::string http_host = "127.0.0.1";
  std::uint16_t http_port = 0;  // 0: any free port
  std::uint32_t http_threads = 2;
  std::uint32_t max_body_bytes = 1U << 20;

  EngineKind engine = EngineKind::kLlama;
  LlamaOptions llama;
  SyntheticOptions synthetic;

  std::uint32_t pool_pages = 256;  // prefill and decode
  std::string instance;            // name in the registry; empty: role and process id
  std::string bootstrap_address;   // host:port; joins library.bootstrap_addresses
  bool keep_paired = true;         // decode: sessions to all prefills ahead of any request
  Options library;                 // of KvManager

  SchedulerLimits limits;
  std::uint32_t default_chat_tokens = 256;  // answer of a chat that names no limit
  std::uint32_t drain_timeout_ms = 30'000;
};

class Server {
 public:
  virtual ~Server() = default;              // as stop()
  virtual std::string address() const = 0;  // host:port of the HTTP API
  virtual std::string control_endpoint()
      const = 0;  // host:port that peers dial; empty in role both
  virtual const EngineInfo& engine() const = 0;

  // Any thread. New requests get 503 and /readyz falls; running ones go on.
  virtual void request_drain() = 0;
  // Blocks until a requested drain is over (all answered, or its deadline passed) or stop() was
  // called. True when every request was answered.
  virtual bool wait() = 0;
  // Any thread. Ends what is still running and joins all threads. Idempotent.
  virtual void stop() = 0;
};

// Loads the engine and starts serving; takes seconds with a model.
Result<std::unique_ptr<Server>> start_server(ServeOptions options);

}  // namespace kvferry::serve
