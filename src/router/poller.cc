#include "router/poller.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "router/json.h"

namespace kvferry::router {
namespace {

constexpr std::uint64_t kMaxAnswerBytes = 4U << 20;

// Servers name their problems as an array of texts, as one reason, or as checks of which some
// failed.
std::string reasons_in(const JsonView& answer) {
  std::string out;
  const auto add = [&](const std::string& text) {
    if (!text.empty()) out += (out.empty() ? "" : "; ") + text;
  };
  for (const std::string_view key : {"problems", "reasons"}) {
    const JsonView list = answer[key];
    for (std::size_t i = 0; i < list.size(); ++i) add(list.at(i).text().value_or(""));
  }
  const JsonView checks = answer["checks"];
  for (std::size_t i = 0; i < checks.size(); ++i) {
    const JsonView check = checks.at(i);
    if (check["ok"].boolean().value_or(true)) continue;
    const std::string name = check["name"].text().value_or("");
    const std::string detail = check["detail"].text().value_or("");
    add(detail.empty() ? name : fmt::format("{}: {}", name, detail));
  }
  if (out.empty()) add(answer["reason"].text().value_or(""));
  return out;
}

}  // namespace

ServerReport read_readyz(int status, std::string_view body) {
  ServerReport report;
  report.ready = status == 200;
  const auto document = JsonDocument::parse(body);
  std::string reasons;
  if (document) {
    report.instance = document->root()["instance"].text().value_or("");
    reasons = reasons_in(document->root());
  }
  if (!report.ready) {
    report.reason = reasons.empty() ? fmt::format("/readyz answered {}", status) : reasons;
  }
  return report;
}

Result<std::vector<PairReport>> read_pairs(int status, std::string_view body) {
  if (status != 200) {
    return fail(FailureCode::kMalformed, fmt::format("/v1/kvferry/pairs answered {}", status));
  }
  const auto document = JsonDocument::parse(body);
  if (!document || !document->root()["pairs"].is_array()) {
    return fail(FailureCode::kMalformed, "/v1/kvferry/pairs did not answer with a table of pairs");
  }
  std::vector<PairReport> pairs;
  const JsonView rows = document->root()["pairs"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const JsonView row = rows.at(i);
    pairs.push_back({row["instance"].text().value_or(""), row["ready"].boolean().value_or(false),
                     row["reason"].text().value_or("")});
  }
  return pairs;
}

// Callbacks of one call are made one after the other; busy keeps a second call from starting, so
// the fields below it need no lock.
struct Poller::Question {
  Question(Fleet& to, Role whose, std::size_t position, std::string where, bool pairs)
      : fleet(to), role(whose), index(position), address(std::move(where)), asks_pairs(pairs) {}

  Fleet& fleet;
  const Role role;
  const std::size_t index;
  const std::string address;
  const bool asks_pairs;
  std::atomic<bool> busy{false};
  std::shared_ptr<net::HttpCall> call;  // the poller's thread only
  int status = 0;
  std::string body;

  void ended(const Status& result) {
    if (asks_pairs) {
      if (result) {
        fleet.pairs_answered(index, read_pairs(status, body));
      } else {
        fleet.pairs_answered(index, tl::unexpected<Failure>(result.error()));
      }
    } else if (result) {
      fleet.server_answered(role, index, read_readyz(status, body));
    } else {
      fleet.server_answered(role, index, ServerReport{false, "", result.error().what});
    }
    busy.store(false, std::memory_order_release);
  }
};

Poller::Poller(PollerConfig config, net::HttpClient& client, Fleet& fleet)
    : config_(std::move(config)), client_(client) {
  const auto add = [&](Role role, std::size_t index, const std::string& address, bool asks_pairs) {
    questions_.push_back(std::make_shared<Question>(fleet, role, index, address, asks_pairs));
  };
  for (std::size_t i = 0; i < config_.prefill.size(); ++i) {
    add(Role::kPrefill, i, config_.prefill[i], false);
  }
  for (std::size_t i = 0; i < config_.decode.size(); ++i) {
    add(Role::kDecode, i, config_.decode[i], false);
    add(Role::kDecode, i, config_.decode[i], true);
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

Poller::~Poller() {
  thread_.request_stop();
  thread_.join();
  for (const auto& question : questions_) {
    if (question->call) question->call->cancel();
  }
}

void Poller::ask_all() {
  for (const auto& question : questions_) {
    if (question->busy.exchange(true, std::memory_order_acquire)) continue;
    question->status = 0;
    question->body.clear();
    net::HttpCallOptions options;
    options.address = question->address;
    options.connect_timeout_ms = config_.connect_timeout_ms;
    options.total_timeout_ms = config_.timeout_ms;
    options.max_body_bytes = kMaxAnswerBytes;
    net::HttpRequest request;
    request.target = question->asks_pairs ? "/v1/kvferry/pairs" : "/readyz";
    net::HttpCallbacks callbacks;
    callbacks.on_head = [question](const net::HttpResponse& head) {
      question->status = head.status;
    };
    callbacks.on_data = [question](std::string_view data) { question->body += data; };
    callbacks.on_end = [question](const Status& result) { question->ended(result); };
    question->call = client_.call(std::move(options), std::move(request), std::move(callbacks));
  }
}

void Poller::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    ask_all();
    wake_.wait_for(lock, stop, std::chrono::milliseconds(config_.interval_ms),
                   [] { return false; });
  }
}

}  // namespace kvferry::router
