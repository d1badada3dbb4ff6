// One answer on its way to the client: text assembly, the end of the answer, and the wire shape
// (OpenAI's or SGLang's), streamed or whole.
//
// Threads: the scheduler's; client_gone() may be raised by a server thread meanwhile.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/instant.h"
#include "net/http_server.h"
#include "serve/api_json.h"
#include "serve/engine.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/sglang_json.h"
#include "serve/text_stream.h"
#include "serve/wake_fd.h"

namespace kvferry::serve {

// A request whose form has been checked, on its way into a scheduler.
struct Submission {
  GenerationRequest request;
  std::vector<Token> tokens;     // of the prompt
  std::uint32_t max_tokens = 0;  // of the answer
  AnswerHead head;
  std::shared_ptr<net::Responder> responder;
  Instant arrived;
};

void respond_error(net::Responder& responder, const ApiError& error);

// Tells whether the client has gone; a disconnect also wakes the scheduler.
class ClientWatch {
 public:
  ClientWatch(net::Responder& responder, std::shared_ptr<WakeFd> wake);
  bool gone() const { return gone_->load(std::memory_order_acquire); }

 private:
  std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
};

class Answer {
 public:
  Answer(Submission submission, const Engine& engine, ServeMetrics& metrics,
         std::shared_ptr<WakeFd> wake);

  const Submission& submission() const { return submission_; }
  bool client_gone() const { return watch_.gone(); }
  // Number of the next token within the answer.
  std::uint32_t next_index() const { return counted_; }
  bool complete() const { return complete_; }

  // Adds the next token. True when the answer is complete; it has then been sent.
  bool add(Token token);
  // Before the first token: an HTTP error; in a stream: an error event and the end.
  void fail(const ApiError& error);
  // The client left; nothing is sent.
  void drop();

 private:
  bool is_generate() const { return submission_.request.kind == RequestKind::kGenerate; }
  Usage usage() const;
  void emit(std::string text, const Finish& finish);
  void emit_openai(std::string_view text, const Finish& finish);
  void finish(const Finish& finish, std::string text);
  std::string whole(const Finish& finish) const;
  void begin_stream();
  void write_event(std::string json);

  Submission submission_;
  const Engine& engine_;
  ServeMetrics& metrics_;
  ClientWatch watch_;
  TextStream text_stream_;
  std::string text_;              // whole answers, and SGLang's streams
  std::vector<Token> token_ids_;  // of these: all; of OpenAI's streams: since the last piece
  std::uint32_t counted_ = 0;
  bool streaming_ = false;
  bool named_role_ = false;
  bool complete_ = false;
};

}  // namespace kvferry::serve
