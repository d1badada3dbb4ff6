// Asynchronous HTTP/1.1 client on one thread of its own, behind a plain header. Serves the router
// (thousands of streamed answers) and, through fetch(), the bootstrap client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvferry/status.h"
#include "net/http.h"

namespace kvferry::net {

struct HttpCallOptions {
  std::string address;  // host:port
  std::uint32_t connect_timeout_ms = 1'000;
  std::uint32_t first_byte_timeout_ms = 0;   // until the response's head; 0: none
  std::uint32_t idle_timeout_ms = 0;         // between body pieces; 0: none
  std::uint32_t total_timeout_ms = 0;        // whole call; 0: none
  std::uint64_t max_body_bytes = 16U << 20;  // all pieces together; 0: no limit
};

// Called on the client's thread, in this order: on_head once, on_data any number of times, on_end
// once. A failed call gets on_end alone or after part of the answer; an answer with any HTTP status
// is not a failure. They must not block: other calls wait meanwhile. All calls of one HttpCall come
// from one thread, and the functions with what they hold are destroyed there too, after on_end or
// cancel().
struct HttpCallbacks {
  std::function<void(const HttpResponse& head)> on_head;  // body empty
  std::function<void(std::string_view data)> on_data;
  std::function<void(Status status)> on_end;
};

class HttpCall {
 public:
  virtual ~HttpCall() = default;  // does not cancel
  // Closes the connection, so that the server sees it; idempotent, from any thread. When it returns
  // no callback is running and none will be called, on_end included: it waits for one that is
  // running on the client's thread, so hold no lock here that a callback takes. From within a
  // callback of this call it returns at once and that callback is the last one. An on_end that was
  // called before stays called.
  virtual void cancel() = 0;
};

class HttpClient {
 public:
  static std::unique_ptr<HttpClient> start(unsigned threads = 1);
  // Cancels what is open (on_end is not called; a fetch() gets kShuttingDown) and joins. A lookup
  // of a host name that is under way goes on without the client (net/name_lookup.h) and is not
  // waited for. Not from a callback.
  virtual ~HttpClient() = default;
  // Returns at once. With several threads each call belongs to one of them. Idle keep-alive
  // connections are reused per address. A server may close one just when a request is on its way to
  // it: if no byte of the answer came, and writing failed or the connection ended within 100 ms
  // after the request was written, it is tried once more on a new connection. One that ends later
  // may have been carried out and is not repeated: on_end gets kPeerLost.
  virtual std::shared_ptr<HttpCall> call(HttpCallOptions options, HttpRequest request,
                                         HttpCallbacks callbacks) = 0;
  // Waits for the whole answer. Not for engine or protocol threads, nor from a callback.
  Result<HttpResponse> fetch(HttpCallOptions options, HttpRequest request);
};

}  // namespace kvferry::net
