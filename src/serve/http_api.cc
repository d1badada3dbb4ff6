#include "serve/http_api.h"

#include <fmt/format.h>

#include <ctime>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"

namespace kvferry::serve {
namespace {

constexpr std::uint32_t kDefaultCompletionTokens = 16;  // as in OpenAI's API
constexpr std::string_view kRooms = "/v1/kvferry/rooms";

net::HttpResponse answer(int status, std::string body,
                         std::string content_type = "application/json") {
  net::HttpResponse response;
  response.status = status;
  response.headers.fields.emplace_back("Content-Type", std::move(content_type));
  response.body = std::move(body);
  return response;
}

net::HttpResponse error_answer(const ApiError& error) {
  return answer(error.status, error_json(error));
}

bool is_get_path(std::string_view path) {
  for (const std::string_view known : {"/health", "/livez", "/readyz", "/metrics", "/v1/models",
                                       "/v1/kvferry/pairs", "/v1/kvferry/status"}) {
    if (path == known) {
      return true;
    }
  }
  return path.starts_with(kRooms);
}

bool is_post_path(std::string_view path) {
  return path == "/v1/completions" || path == "/v1/chat/completions";
}

MetricSample gauge(std::string name, double value) { return {std::move(name), "", value, false}; }
MetricSample counted(std::string name, std::uint64_t value) {
  return {std::move(name), "", static_cast<double>(value), true};
}

}  // namespace

std::string_view to_string(ServeRole role) {
  switch (role) {
    case ServeRole::kPrefill:
      return "prefill";
    case ServeRole::kDecode:
      return "decode";
    case ServeRole::kBoth:
      return "both";
  }
  return "?";
}

HttpApi::HttpApi(ApiContext context) : context_(context), created_(std::time(nullptr)) {}

void HttpApi::handle(net::HttpRequest request, std::shared_ptr<net::Responder> responder) const {
  const std::string path(request.path());
  if (is_post_path(path) && request.method == "POST") {
    generate(path == "/v1/completions" ? RequestKind::kCompletion : RequestKind::kChat, request,
             std::move(responder));
    return;
  }
  if (is_get_path(path) && (request.method == "GET" || request.method == "HEAD")) {
    responder->respond(answer_get(path));
    return;
  }
  if (is_post_path(path) || is_get_path(path)) {
    const std::string allowed = is_post_path(path) ? "POST" : "GET";
    auto response = error_answer({405, fmt::format("{} takes {}", path, allowed),
                                  "invalid_request_error", "", "method_not_allowed"});
    response.headers.fields.emplace_back("Allow", allowed);
    responder->respond(std::move(response));
    return;
  }
  responder->respond(error_answer({404, fmt::format("there is no {} on this server", path),
                                   "invalid_request_error", "", "not_found"}));
}

void HttpApi::generate(RequestKind kind, const net::HttpRequest& request,
                       std::shared_ptr<net::Responder> responder) const {
  if (context_.draining->load()) {
    respond_error(*responder, {503,
                               "this server is draining: it finishes what it has and takes no "
                               "new requests",
                               "server_error", "", "draining"});
    return;
  }
  auto parsed = parse_request(kind, request.body);
  if (!parsed) {
    respond_error(*responder, parsed.error());
    return;
  }
  auto submission = prepare(std::move(*parsed));
  if (!submission) {
    respond_error(*responder, submission.error());
    return;
  }
  submission->responder = std::move(responder);
  context_.scheduler->submit(std::move(*submission));
}

std::optional<ApiError> HttpApi::check_room(const GenerationRequest& request) const {
  if (context_.role == ServeRole::kBoth) {
    if (request.room) {
      return ApiError{400, "this server plays both roles; it takes no bootstrap fields",
                      "invalid_request_error", "bootstrap_room", "unsupported"};
    }
    return std::nullopt;
  }
  if (!request.room) {
    return ApiError{400,
                    fmt::format("this is a {} server: requests must come through the router, which "
                                "sets bootstrap_host, bootstrap_port, bootstrap_room and "
                                "kvferry_binding",
                                to_string(context_.role)),
                    "invalid_request_error", "bootstrap_room", "missing"};
  }
  return std::nullopt;
}

Result<std::vector<Token>> HttpApi::tokenize(const GenerationRequest& request) const {
  if (request.chat) {
    auto prompt = context_.engine->chat_prompt(request.messages);
    if (!prompt) {
      return tl::unexpected(prompt.error());
    }
    return context_.engine->tokenize(*prompt, true, true);
  }
  if (request.prompt_tokens.empty()) {
    return context_.engine->tokenize(request.prompt, true, false);
  }
  for (const Token token : request.prompt_tokens) {
    if (static_cast<std::uint32_t>(token) >= context_.engine->info().vocab_size) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("token {} of the prompt is not in the vocabulary of {}", token,
                              context_.engine->info().vocab_size));
    }
  }
  return request.prompt_tokens;
}

tl::expected<Submission, ApiError> HttpApi::prepare(GenerationRequest request) const {
  if (auto error = check_room(request)) {
    return tl::unexpected(std::move(*error));
  }
  const std::string_view param = request.chat ? "messages" : "prompt";
  auto tokens = tokenize(request);
  if (!tokens) {
    ApiError error = to_api_error(tokens.error());
    error.param = param;
    return tl::unexpected(std::move(error));
  }
  const std::uint32_t limit = context_.engine->info().max_sequence_tokens;
  auto refuse = [&](std::string message, std::string code) {
    return tl::unexpected(ApiError{400, std::move(message), "invalid_request_error",
                                   std::string(param), std::move(code)});
  };
  if (tokens->empty()) {
    return refuse("the prompt has no tokens", "missing");
  }
  if (tokens->size() >= limit) {
    return refuse(
        fmt::format("the prompt has {} tokens; the limit is {} (a context of {} less one for "
                    "the answer)",
                    tokens->size(), limit - 1, limit),
        "context_length_exceeded");
  }
  const auto prompt_tokens = static_cast<std::uint32_t>(tokens->size());
  if (context_.pool != nullptr &&
      context_.pool->pages_for(prompt_tokens) > context_.pool->page_count()) {
    return refuse(
        fmt::format("the prompt has {} tokens and needs {} pages; this server's pool has {}",
                    prompt_tokens, context_.pool->pages_for(prompt_tokens),
                    context_.pool->page_count()),
        "context_length_exceeded");
  }
  Submission submission;
  const std::uint32_t wanted = request.max_tokens.value_or(
      request.chat ? context_.default_chat_tokens : kDefaultCompletionTokens);
  submission.max_tokens = std::min(wanted, limit - prompt_tokens);
  if (!request.has_seed) {
    // Both sides of a room draw alike without being told a seed.
    request.sampling.seed =
        request.room ? request.room->binding.high ^ request.room->binding.low : random_u64();
  }
  submission.head = {request.chat,
                     fmt::format("{}-{}", request.chat ? "chatcmpl" : "cmpl",
                                 request.room ? request.room->binding.to_hex()
                                              : fmt::format("{:016x}", random_u64())),
                     context_.engine->info().model_name, std::time(nullptr)};
  submission.tokens = std::move(*tokens);
  submission.request = std::move(request);
  submission.arrived = monotonic_now();
  return submission;
}

std::vector<ReadinessCheck> HttpApi::readiness() const {
  std::vector<ReadinessCheck> checks;
  const bool alive = context_.scheduler->alive();
  checks.push_back({"scheduler", alive, alive ? "" : context_.scheduler->problem()});
  const bool draining = context_.draining->load();
  checks.push_back({"accepting", !draining, draining ? "draining" : ""});
  if (context_.transfer != nullptr) {
    for (ReadinessCheck& check : context_.transfer->readiness()) {
      checks.push_back(std::move(check));
    }
  }
  return checks;
}

net::HttpResponse HttpApi::answer_get(std::string_view path) const {
  if (path == "/livez") {
    const bool alive = context_.scheduler->alive();
    return answer(alive ? 200 : 503, alive ? "ok\n" : "the scheduler thread has ended\n",
                  "text/plain");
  }
  if (path == "/readyz" || path == "/health") {
    const auto checks = readiness();
    bool ready = true;
    for (const auto& check : checks) {
      ready = ready && check.ok;
    }
    return answer(ready ? 200 : 503, readiness_json(context_.instance, checks));
  }
  if (path == "/metrics") {
    return answer(200, metrics_text(), "text/plain; version=0.0.4");
  }
  if (path == "/v1/models") {
    return answer(200, models_json(context_.engine->info(), created_));
  }
  if (path == "/v1/kvferry/pairs") {
    return answer(200, pairs_json(context_.transfer != nullptr ? context_.transfer->pairs()
                                                               : std::vector<PairState>()));
  }
  if (path == "/v1/kvferry/status") {
    return answer(200, context_.transfer != nullptr ? context_.transfer->dump_status() : "{}");
  }
  return room_answer(path.substr(kRooms.size()));
}

net::HttpResponse HttpApi::room_answer(std::string_view name) const {
  if (name.empty() || name == "/") {
    return answer(200, rooms_json(context_.rooms->recent(100)));
  }
  const auto binding = Binding::from_hex(name.substr(1));
  const auto stats = binding ? context_.rooms->find(*binding) : std::nullopt;
  if (!stats) {
    return error_answer({404, "no room with this binding ended here lately",
                         "invalid_request_error", "", "not_found"});
  }
  return answer(200, room_json(*stats));
}

std::string HttpApi::metrics_text() const {
  std::vector<MetricSample> samples;
  if (context_.pool != nullptr) {
    const PagePool& pool = *context_.pool;
    samples.push_back(counted("pool_pages_taken_total", pool.taken_total()));
    samples.push_back(counted("pool_pages_given_back_total", pool.returned_total()));
    samples.push_back(counted("pool_double_returns_total", pool.double_returns()));
    samples.push_back(gauge("pool_pages", pool.page_count()));
    samples.push_back(gauge("pool_pages_free", pool.free_pages()));
    samples.push_back(gauge("pool_aux_slots_free", pool.free_aux()));
  }
  if (context_.transfer != nullptr) {
    const auto more = context_.transfer->metrics();
    samples.insert(samples.end(), more.begin(), more.end());
  }
  bool ready = true;
  for (const auto& check : readiness()) {
    ready = ready && check.ok;
  }
  samples.push_back(gauge("ready", ready ? 1 : 0));
  samples.push_back(gauge("requests_active", context_.scheduler->requests()));
  samples.push_back(gauge("requests_limit", context_.scheduler->limits().max_requests));
  return context_.metrics->render(samples);
}

}  // namespace kvferry::serve
