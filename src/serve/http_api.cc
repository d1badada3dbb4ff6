#include "serve/http_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/allowed_registries.h"
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
                                       "/v1/kvferry/pairs", "/v1/kvferry/status", "/server_info",
                                       "/get_server_info", "/model_info", "/get_model_info"}) {
    if (path == known) {
      return true;
    }
  }
  return path.starts_with(kRooms);
}

std::optional<RequestKind> kind_of(std::string_view path) {
  if (path == "/v1/completions") return RequestKind::kCompletion;
  if (path == "/v1/chat/completions") return RequestKind::kChat;
  if (path == "/generate") return RequestKind::kGenerate;
  return std::nullopt;
}

// Of the request's field that holds the prompt.
std::string_view prompt_field(const GenerationRequest& request) {
  switch (request.kind) {
    case RequestKind::kChat:
      return "messages";
    case RequestKind::kGenerate:
      return request.prompt_tokens.empty() ? "text" : "input_ids";
    case RequestKind::kCompletion:
      break;
  }
  return "prompt";
}

std::string answer_id(const GenerationRequest& request) {
  if (!request.request_id.empty()) {
    return request.request_id;
  }
  const std::string name =
      request.room ? request.room->binding.to_hex() : fmt::format("{:016x}", random_u64());
  switch (request.kind) {
    case RequestKind::kChat:
      return "chatcmpl-" + name;
    case RequestKind::kCompletion:
      return "cmpl-" + name;
    case RequestKind::kGenerate:
      break;
  }
  return name;
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
  const auto kind = kind_of(path);
  if (kind && request.method == "POST") {
    generate(*kind, request, std::move(responder));
    return;
  }
  if (is_get_path(path) && (request.method == "GET" || request.method == "HEAD")) {
    responder->respond(answer_get(path));
    return;
  }
  if (kind || is_get_path(path)) {
    const std::string allowed = kind ? "POST" : "GET";
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
  auto parsed = parse_request(kind, request.body);
  if (!parsed) {
    respond_error(*responder, parsed.error());
    return;
  }
  const std::optional<RoomFields> room = parsed->room;
  const auto refuse_room = [&](std::string_view reason) {
    if (room && context_.transfer != nullptr) {
      context_.transfer->refuse(*room, reason);
    }
  };
  auto submission = prepare(std::move(*parsed));
  if (!submission) {
    respond_error(*responder, submission.error());
    refuse_room(submission.error().message);
    return;
  }
  submission->responder = std::move(responder);
  if (const Status taken = context_.scheduler->submit(std::move(*submission)); !taken) {
    refuse_room(taken.error().what);
  }
}

std::optional<ApiError> HttpApi::check_room(GenerationRequest& request) const {
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
                                "kvferry_binding (SGLang's: the first three)",
                                to_string(context_.role)),
                    "invalid_request_error", "bootstrap_room", "missing"};
  }
  // What kvferry's router names is checked where it is dialled: by decode's transfer layer.
  return request.room->binding_derived ? check_registry(*request.room) : std::nullopt;
}

std::optional<ApiError> HttpApi::check_registry(RoomFields& room) const {
  const auto refused = [](std::string_view param, std::string message) {
    return ApiError{400, std::move(message), "invalid_request_error", std::string(param),
                    "registry_not_allowed"};
  };
  if (room.bootstrap_port != 0) {
    if (allows_registry(*context_.library, room.bootstrap_address())) return std::nullopt;
    return refused("bootstrap_host",
                   fmt::format("registry '{}' is neither in bootstrap_addresses nor in "
                               "bootstrap_allow of this server: name it there, or give the router "
                               "the port of one that is",
                               room.bootstrap_address()));
  }
  const std::vector<std::string> on_host =
      allowed_registries_on(*context_.library, room.bootstrap_host);
  if (on_host.size() != 1) {
    return refused("bootstrap_port",
                   fmt::format("'bootstrap_port' is missing and this server knows {} registries on "
                               "'{}': give the router the port beside the prefill server's URL",
                               on_host.size(), room.bootstrap_host));
  }
  room.registry = on_host.front();
  return std::nullopt;
}

Result<std::vector<Token>> HttpApi::tokenize(const GenerationRequest& request) const {
  if (request.chat()) {
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
  if (context_.draining->load()) {
    return tl::unexpected(ApiError{503,
                                   "this server is draining: it finishes what it has and takes no "
                                   "new requests",
                                   "server_error", "", "draining"});
  }
  if (auto error = check_room(request)) {
    return tl::unexpected(std::move(*error));
  }
  const std::string_view param = prompt_field(request);
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
      request.chat() ? context_.default_chat_tokens : kDefaultCompletionTokens);
  submission.max_tokens = std::min(wanted, limit - prompt_tokens);
  if (!request.has_seed) {
    // Both sides of a room draw alike without being told a seed.
    request.sampling.seed =
        request.room ? request.room->binding.high ^ request.room->binding.low : random_u64();
  }
  submission.head = {request.kind, answer_id(request), context_.engine->info().model_name,
                     std::time(nullptr)};
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
  if (path == "/server_info" || path == "/get_server_info") {
    return answer(200, server_info_json(context_.engine->info(), facts()));
  }
  if (path == "/model_info" || path == "/get_model_info") {
    return answer(200, model_info_json(context_.engine->info(), facts()));
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

ServerFacts HttpApi::facts() const {
  return {to_string(context_.role), context_.instance, context_.scheduler->limits().max_requests};
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
