// Streamed chat requests of the demo, and the small questions it asks its servers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cli/interrupt.h"
#include "kvferry/status.h"
#include "net/http_client.h"
#include "router/json.h"

namespace kvferry::cli {

struct ChatRequest {
  std::string model;
  std::string prompt;
  std::uint32_t max_tokens = 32;
};

struct ChatAnswer {
  std::string problem;  // empty when the answer is complete
  std::string text;
  std::string finish_reason;
  std::string binding;  // from the router; empty from a single server
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  double ttft_ms = 0;  // from sending to the first piece of the answer
  double total_ms = 0;
};

// One request under way; thread-safe.
class ChatCall : public std::enable_shared_from_this<ChatCall> {
 public:
  static std::shared_ptr<ChatCall> start(net::HttpClient& client, const std::string& address,
                                         const ChatRequest& request);
  bool ended() const;
  // Closes the connection.
  void cancel();
  // The answer once ended() is true.
  ChatAnswer answer() const;

 private:
  using Clock = std::chrono::steady_clock;
  void on_data(std::string_view data);
  void on_event(std::string_view json);
  void on_end(const Status& status);
  double age_ms() const;

  mutable std::mutex mutex_;
  ChatAnswer answer_;
  std::string pending_;  // bytes of an event that is not complete
  Clock::time_point sent_;
  int status_ = 0;
  bool first_seen_ = false;
  bool done_seen_ = false;
  bool ended_ = false;
  std::shared_ptr<net::HttpCall> call_;
};

// GET of a JSON document; a status other than 200 is a failure with the body's start.
Result<router::JsonDocument> get_json(net::HttpClient& client, const std::string& address,
                                      const std::string& target);

// The text of /metrics.
Result<std::string> get_metrics(net::HttpClient& client, const std::string& address);
// Sum over all label sets of one metric; nothing when it is absent.
std::optional<double> metric_value(std::string_view metrics, std::string_view name);

}  // namespace kvferry::cli
