#include "serve/answer.h"

#include "base/clock.h"

namespace kvferry::serve {
namespace {

net::HttpResponse json_answer(int status, std::string json) {
  net::HttpResponse response;
  response.status = status;
  response.headers.fields.emplace_back("Content-Type", "application/json");
  response.body = std::move(json);
  return response;
}

double seconds_since(Instant start) {
  return std::chrono::duration<double>(monotonic_now() - start).count();
}

}  // namespace

void respond_error(net::Responder& responder, const ApiError& error) {
  auto response = json_answer(error.status, error_json(error));
  if (error.status == 503) {
    response.headers.fields.emplace_back("Retry-After", "1");
  }
  responder.respond(std::move(response));
}

ClientWatch::ClientWatch(net::Responder& responder, std::shared_ptr<WakeFd> wake) {
  responder.on_disconnect([gone = gone_, wake = std::move(wake)] {
    gone->store(true, std::memory_order_release);
    wake->raise();
  });
}

Answer::Answer(Submission submission, const Engine& engine, ServeMetrics& metrics,
               std::shared_ptr<WakeFd> wake)
    : submission_(std::move(submission)),
      engine_(engine),
      metrics_(metrics),
      watch_(*submission_.responder, std::move(wake)),
      text_stream_(submission_.request.stop) {}

bool Answer::add(Token token) {
  if (complete_) {
    return true;
  }
  if (counted_ == 0) {
    metrics_.first_token(seconds_since(submission_.arrived));
  }
  if (engine_.ends_answer(token) && !submission_.request.ignore_eos) {
    if (is_generate()) {
      ++counted_;  // There the token that ends the answer is one of its tokens.
      token_ids_.push_back(token);
    }
    finish({"stop", token, {}}, text_stream_.flush());
    return true;
  }
  ++counted_;
  if (submission_.request.return_token_ids) {
    token_ids_.push_back(token);
  }
  std::string text = text_stream_.push(engine_.piece(token));
  if (text_stream_.stopped()) {
    finish({"stop", std::nullopt, text_stream_.matched()}, std::move(text));
    return true;
  }
  if (counted_ >= submission_.max_tokens) {
    finish({"length", std::nullopt, {}}, text + text_stream_.flush());
    return true;
  }
  emit(std::move(text), {});
  return false;
}

Usage Answer::usage() const {
  return {static_cast<std::uint32_t>(submission_.tokens.size()), counted_};
}

void Answer::emit(std::string text, const Finish& finish) {
  if (!submission_.request.stream) {
    text_ += text;
  } else if (is_generate()) {
    text_ += text;
    begin_stream();
    write_event(generate_json(submission_.head, text_, token_ids_, finish, usage()));
  } else {
    emit_openai(text, finish);
  }
}

void Answer::emit_openai(std::string_view text, const Finish& finish) {
  if (text.empty() && token_ids_.empty() && finish.type.empty() && streaming_) {
    return;
  }
  begin_stream();
  const bool ids = submission_.request.return_token_ids;
  write_event(
      chunk_json(submission_.head, text, !named_role_, finish.type, ids ? &token_ids_ : nullptr));
  named_role_ = true;
  token_ids_.clear();
}

void Answer::begin_stream() {
  if (streaming_) {
    return;
  }
  net::HttpResponse head;
  head.headers.fields.emplace_back("Content-Type", "text/event-stream");
  head.headers.fields.emplace_back("Cache-Control", "no-cache");
  submission_.responder->begin_stream(std::move(head));
  streaming_ = true;
}

std::string Answer::whole(const Finish& finish) const {
  if (is_generate()) {
    return generate_json(submission_.head, text_, token_ids_, finish, usage());
  }
  const bool ids = submission_.request.return_token_ids;
  return answer_json(submission_.head, text_, finish.type, usage(), ids ? &token_ids_ : nullptr);
}

void Answer::finish(const Finish& finish, std::string text) {
  complete_ = true;
  emit(std::move(text), finish);
  if (submission_.request.stream) {
    if (submission_.request.include_usage) {
      write_event(usage_chunk_json(submission_.head, usage()));
    }
    write_event("[DONE]");
    submission_.responder->end();
  } else {
    submission_.responder->respond(json_answer(200, whole(finish)));
  }
  metrics_.request_ended(200, seconds_since(submission_.arrived));
  metrics_.answer_tokens(counted_);
}

void Answer::fail(const ApiError& error) {
  if (complete_) {
    return;
  }
  complete_ = true;
  if (streaming_) {
    write_event(error_json(error));
    if (is_generate()) {
      write_event("[DONE]");  // SGLang ends a failed stream like any other.
    }
    submission_.responder->end();
  } else {
    respond_error(*submission_.responder, error);
  }
  metrics_.request_ended(error.status, seconds_since(submission_.arrived));
  metrics_.answer_tokens(counted_);
}

void Answer::drop() {
  if (!complete_) {
    fail({499, "the client left", "invalid_request_error", "", "aborted"});
  }
}

void Answer::write_event(std::string json) {
  submission_.responder->write("data: " + std::move(json) + "\n\n");
}

}  // namespace kvferry::serve
