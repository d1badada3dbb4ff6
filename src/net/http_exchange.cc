#include "net/http_exchange.h"

#include <utility>

namespace kvferry::net {
namespace {

// Held by the handler; its end without an answer is one.
class ExchangeResponder final : public Responder {
 public:
  explicit ExchangeResponder(std::shared_ptr<HttpExchange> exchange)
      : exchange_(std::move(exchange)) {}
  ~ExchangeResponder() override { exchange_->abandon(); }

  void respond(HttpResponse response) override { exchange_->respond(std::move(response)); }
  void begin_stream(HttpResponse head) override { exchange_->begin_stream(std::move(head)); }
  void write(std::string data) override { exchange_->write(std::move(data)); }
  void end() override { exchange_->end(); }
  void on_disconnect(std::function<void()> callback) override {
    exchange_->on_disconnect(std::move(callback));
  }

 private:
  const std::shared_ptr<HttpExchange> exchange_;
};

}  // namespace

HttpExchange::HttpExchange(Hooks hooks, std::size_t max_queued_bytes)
    : hooks_(std::move(hooks)), max_queued_bytes_(max_queued_bytes) {}

std::shared_ptr<Responder> HttpExchange::make_responder() {
  return std::make_shared<ExchangeResponder>(shared_from_this());
}

bool HttpExchange::has_output() const {
  std::lock_guard lock(mutex_);
  return head_.has_value() || !data_.empty() || gone_ ||
         ((state_ == State::kComplete || state_ == State::kAbandoned) && !end_taken_);
}

HttpExchange::Output HttpExchange::take_output() {
  std::lock_guard lock(mutex_);
  Output output;
  woken_ = false;
  output.head = std::exchange(head_, std::nullopt);
  output.streamed = streamed_;
  output.data.swap(data_);
  output.complete = state_ == State::kComplete;
  output.abandoned = state_ == State::kAbandoned || gone_;
  end_taken_ = output.complete || output.abandoned;
  return output;
}

void HttpExchange::client_gone() {
  std::lock_guard lock(mutex_);
  lose_client_locked();
}

void HttpExchange::lose_client_locked() {
  if (gone_) {
    return;
  }
  gone_ = true;
  data_ = {};
  const bool answered = state_ == State::kComplete || state_ == State::kAbandoned;
  auto callback = std::exchange(callback_, nullptr);
  if (callback && !answered && hooks_.run) {
    hooks_.run(std::move(callback));
  }
}

void HttpExchange::detach() {
  std::lock_guard lock(mutex_);
  lose_client_locked();
  hooks_ = {};
}

void HttpExchange::wake_locked() {
  if (!woken_ && hooks_.wake) {
    woken_ = true;
    hooks_.wake();
  }
}

void HttpExchange::respond(HttpResponse response) {
  std::function<void()> released;
  std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) {
    return;
  }
  state_ = State::kComplete;
  released.swap(callback_);
  if (!gone_) {
    head_ = std::move(response);
    wake_locked();
  }
}

void HttpExchange::begin_stream(HttpResponse head) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) {
    return;
  }
  state_ = State::kStreaming;
  streamed_ = true;
  if (!gone_) {
    head_ = std::move(head);
    wake_locked();
  }
}

void HttpExchange::write(std::string data) {
  std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || gone_ || data.empty()) {
    return;
  }
  if (data_.size() + data.size() > max_queued_bytes_) {
    // The client reads too slowly. Waiting would make the handler pay for it.
    lose_client_locked();
  } else if (data_.empty()) {
    data_ = std::move(data);
  } else {
    data_ += data;
  }
  wake_locked();
}

void HttpExchange::end() {
  std::function<void()> released;
  std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming) {
    return;
  }
  state_ = State::kComplete;
  released.swap(callback_);
  wake_locked();
}

void HttpExchange::on_disconnect(std::function<void()> callback) {
  std::function<void()> inline_call;
  std::function<void()> released;  // what an earlier call left is destroyed outside the lock
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kComplete || state_ == State::kAbandoned) {
      return;
    }
    if (!gone_) {
      released = std::exchange(callback_, std::move(callback));
    } else if (hooks_.run) {
      hooks_.run(std::move(callback));
    } else {
      inline_call = std::move(callback);  // the server has no thread left for it
    }
  }
  if (inline_call) {
    inline_call();
  }
}

void HttpExchange::abandon() {
  std::function<void()> released;
  std::lock_guard lock(mutex_);
  released.swap(callback_);
  if (state_ == State::kOpen) {
    state_ = State::kComplete;
    if (!gone_) {
      head_ = error_response(500, "the request was dropped without an answer", "no_answer",
                             "server_error");
    }
  } else if (state_ == State::kStreaming) {
    state_ = State::kAbandoned;
  } else {
    return;
  }
  wake_locked();
}

}  // namespace kvferry::net
