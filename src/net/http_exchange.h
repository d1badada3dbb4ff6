// One request and its answer on the server: the place where the handler's threads and the
// connection meet. The handler's side is a Responder; the connection takes what there is to write
// and says when the client is gone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "net/http_server.h"

namespace kvferry::net {

class HttpExchange : public std::enable_shared_from_this<HttpExchange> {
 public:
  // What is to be written next. complete: nothing comes after it; abandoned: the stream was dropped
  // before its end, so that the connection must break for the client to see it.
  struct Output {
    std::optional<HttpResponse> head;
    bool streamed = false;  // with head: chunks follow, its body is not used
    std::string data;       // pieces of a stream, joined
    bool complete = false;
    bool abandoned = false;
  };
  // wake: something is to be written or to be ended. run: call something on a server thread.
  struct Hooks {
    std::function<void()> wake;
    std::function<void(std::function<void()>)> run;
  };

  HttpExchange(Hooks hooks, std::size_t max_queued_bytes);

  std::shared_ptr<Responder> make_responder();

  // --- connection's side ---
  bool has_output() const;
  Output take_output();
  // The client's connection broke. Calls back once, unless the answer was complete before.
  void client_gone();
  // The connection is about to go; hooks are not called any more when this returns.
  void detach();

  // --- responder's side, any thread ---
  void respond(HttpResponse response);
  void begin_stream(HttpResponse head);
  void write(std::string data);
  void end();
  void on_disconnect(std::function<void()> callback);
  void abandon();  // the last reference was dropped

 private:
  enum class State : std::uint8_t { kOpen, kStreaming, kComplete, kAbandoned };

  void wake_locked();
  void lose_client_locked();

  mutable std::mutex mutex_;
  Hooks hooks_;
  const std::size_t max_queued_bytes_;
  State state_ = State::kOpen;
  bool gone_ = false;
  bool woken_ = false;      // a wake-up is under way
  bool end_taken_ = false;  // the connection has taken the last output
  std::optional<HttpResponse> head_;
  bool streamed_ = false;
  std::string data_;
  std::function<void()> callback_;
};

}  // namespace kvferry::net
