#include "cli/chat_client.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace kvferry::cli {
namespace {

constexpr std::uint32_t kQuestionTimeoutMs = 10'000;
constexpr std::uint32_t kChatTimeoutMs = 600'000;

std::string chat_body(const ChatRequest& request) {
  using router::JsonObject;
  const std::string message =
      JsonObject().text("role", "user").text("content", request.prompt).str();
  return JsonObject()
      .text("model", request.model)
      .raw("messages", router::json_array({message}))
      .integer("temperature", 0)
      .integer("max_tokens", request.max_tokens)
      .boolean("stream", true)
      .raw("stream_options", JsonObject().boolean("include_usage", true).str())
      .str();
}

net::HttpRequest get_request(const std::string& target) {
  net::HttpRequest request;
  request.target = target;
  return request;
}

net::HttpCallOptions question_options(const std::string& address) {
  net::HttpCallOptions options;
  options.address = address;
  options.total_timeout_ms = kQuestionTimeoutMs;
  return options;
}

}  // namespace

std::shared_ptr<ChatCall> ChatCall::start(net::HttpClient& client, const std::string& address,
                                          const ChatRequest& request) {
  auto chat = std::make_shared<ChatCall>();
  net::HttpCallOptions options;
  options.address = address;
  options.total_timeout_ms = kChatTimeoutMs;
  net::HttpRequest http;
  http.method = "POST";
  http.target = "/v1/chat/completions";
  http.headers.set("content-type", "application/json");
  http.body = chat_body(request);
  net::HttpCallbacks callbacks;
  callbacks.on_head = [chat](const net::HttpResponse& head) {
    std::lock_guard lock(chat->mutex_);
    chat->status_ = head.status;
    chat->answer_.binding = std::string(head.headers.get("x-kvferry-binding"));
  };
  callbacks.on_data = [chat](std::string_view data) { chat->on_data(data); };
  callbacks.on_end = [chat](const Status& status) { chat->on_end(status); };
  chat->sent_ = Clock::now();
  auto call = client.call(std::move(options), std::move(http), std::move(callbacks));
  std::lock_guard lock(chat->mutex_);
  chat->call_ = std::move(call);
  return chat;
}

double ChatCall::age_ms() const {
  return std::chrono::duration<double, std::milli>(Clock::now() - sent_).count();
}

bool ChatCall::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

void ChatCall::cancel() {
  std::shared_ptr<net::HttpCall> call;
  {
    std::lock_guard lock(mutex_);
    call = call_;
    if (!ended_) answer_.problem = "cancelled";
    ended_ = true;
  }
  call->cancel();
}

ChatAnswer ChatCall::answer() const {
  std::lock_guard lock(mutex_);
  return answer_;
}

void ChatCall::on_data(std::string_view data) {
  std::lock_guard lock(mutex_);
  pending_ += data;
  if (status_ != 200) return;  // an error body, read as a whole at the end
  for (std::size_t end = pending_.find("\n\n"); end != std::string::npos;
       end = pending_.find("\n\n")) {
    const std::string event = pending_.substr(0, end);
    pending_.erase(0, end + 2);
    constexpr std::string_view kField = "data: ";
    if (event.starts_with(kField)) on_event(std::string_view(event).substr(kField.size()));
  }
}

void ChatCall::on_event(std::string_view json) {
  if (json == "[DONE]") {
    done_seen_ = true;
    return;
  }
  const auto document = router::JsonDocument::parse(json);
  if (!document) {
    answer_.problem = "an event is " + document.error().what;
    return;
  }
  const router::JsonView root = document->root();
  if (root["error"].exists()) {
    answer_.problem = root["error"]["message"].text().value_or("an error without a message");
    return;
  }
  const router::JsonView choice = root["choices"].at(0);
  const std::string piece = choice["delta"]["content"].text().value_or("");
  const auto reason = choice["finish_reason"].text();
  if (!first_seen_ && (!piece.empty() || reason)) {
    first_seen_ = true;
    answer_.ttft_ms = age_ms();
  }
  answer_.text += piece;
  if (reason) answer_.finish_reason = *reason;
  if (const router::JsonView usage = root["usage"]; usage.is_object()) {
    answer_.prompt_tokens = usage["prompt_tokens"].integer().value_or(0);
    answer_.completion_tokens = usage["completion_tokens"].integer().value_or(0);
  }
}

void ChatCall::on_end(const Status& status) {
  std::lock_guard lock(mutex_);
  answer_.total_ms = age_ms();
  ended_ = true;
  if (!answer_.problem.empty()) return;
  if (!status) {
    answer_.problem = to_string(status.error());
  } else if (status_ != 200) {
    answer_.problem = fmt::format("status {}: {}", status_, pending_.substr(0, 500));
  } else if (!done_seen_) {
    answer_.problem = "the stream ended without [DONE]";
  }
}

Result<router::JsonDocument> get_json(net::HttpClient& client, const std::string& address,
                                      const std::string& target) {
  const auto response = client.fetch(question_options(address), get_request(target));
  if (!response) return tl::unexpected<Failure>(response.error());
  if (response->status != 200) {
    return fail(FailureCode::kUnspecified,
                fmt::format("{}{} answered {}: {}", address, target, response->status,
                            response->body.substr(0, 200)));
  }
  return router::JsonDocument::parse(response->body);
}

Result<std::string> get_metrics(net::HttpClient& client, const std::string& address) {
  auto response = client.fetch(question_options(address), get_request("/metrics"));
  if (!response) return tl::unexpected<Failure>(response.error());
  if (response->status != 200) {
    return fail(FailureCode::kUnspecified,
                fmt::format("{}/metrics answered {}", address, response->status));
  }
  return std::move(response->body);
}

std::optional<double> metric_value(std::string_view metrics, std::string_view name) {
  std::optional<double> sum;
  while (!metrics.empty()) {
    const std::size_t newline = std::min(metrics.find('\n'), metrics.size());
    const std::string_view line = metrics.substr(0, newline);
    metrics.remove_prefix(std::min(newline + 1, metrics.size()));
    if (!line.starts_with(name)) continue;
    const std::string_view rest = line.substr(name.size());
    if (rest.empty() || (rest.front() != ' ' && rest.front() != '{')) continue;
    const std::string_view number = line.substr(line.rfind(' ') + 1);
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc{}) {
      sum = sum.value_or(0) + value;
    }
  }
  return sum;
}

}  // namespace kvferry::cli
