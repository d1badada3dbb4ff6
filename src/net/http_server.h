// HTTP/1.1 server on Boost.Beast coroutines behind a plain header. Handlers run on the server's own
// threads and must not block; long work answers later through the Responder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvferry/status.h"
#include "net/http.h"

namespace kvferry::net {

struct HttpServerConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any free port
  unsigned threads = 1;
  std::uint32_t max_body_bytes = 1U << 20;     // beyond: 413
  std::uint32_t max_header_bytes = 16U << 10;  // beyond: 431
  std::uint32_t header_timeout_ms = 10'000;    // slow clients are closed
  std::uint32_t body_timeout_ms = 30'000;
  std::uint32_t idle_timeout_ms = 60'000;  // keep-alive
  std::uint32_t write_timeout_ms = 30'000;
  std::uint32_t max_connections = 4'096;             // beyond: 503 and close
  std::uint32_t stream_max_queued_bytes = 8U << 20;  // a client that reads too slowly is cut
};

// One request's answer. Thread-safe: any thread may answer, at most once, either by respond() or by
// begin_stream(), write()... and end(). Dropping the last reference without an answer sends 500.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void respond(HttpResponse response) = 0;
  // Chunked transfer. body of the head is ignored.
  virtual void begin_stream(HttpResponse head) = 0;
  virtual void write(std::string data) = 0;  // no-op once the client is gone
  virtual void end() = 0;
  // Called once, from a server thread, when the client's connection breaks (or half-closes), the
  // client reads too slowly or the server stops before the answer is complete, which means before
  // respond() or end() was called; soon when it has broken already. Never called after a complete
  // answer. Only when the server has stopped already it is called from within on_disconnect.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;

class HttpServer {
 public:
  // Fails with kOperatingSystem when the port is in use; the text names host and port.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerConfig config, HttpHandler handler);
  virtual ~HttpServer() = default;          // as stop()
  virtual std::string address() const = 0;  // host:port
  // No new connections; existing answers go on until drain_timeout_ms, then all is closed and
  // threads are joined. Idempotent. Not from a handler or callback. Responders may outlive the
  // server: what they send then goes nowhere.
  virtual void stop(std::uint32_t drain_timeout_ms = 0) = 0;
};

}  // namespace kvferry::net
