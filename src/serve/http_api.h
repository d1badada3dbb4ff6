// The HTTP surface of one server: routes, checks of a request's form, health. Long work goes to the
// scheduler; nothing here waits.
//
// Threads: handle() runs on the HTTP server's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/http_server.h"
#include "serve/page_pool.h"
#include "serve/room_log.h"
#include "serve/scheduler.h"
#include "serve/sglang_json.h"
#include "serve/transfer.h"

namespace kvferry::serve {

enum class ServeRole : std::uint8_t { kPrefill, kDecode, kBoth };
std::string_view to_string(ServeRole role);

// What the routes look at. Pointers are null where the role has no such thing; all outlive the API.
struct ApiContext {
  ServeRole role = ServeRole::kBoth;
  std::string
      instance;  // name in the registry, by which routers know a prefill server; may be empty
  const Engine* engine = nullptr;
  Scheduler* scheduler = nullptr;
  const PagePool* pool = nullptr;
  Transfer* transfer = nullptr;
  const RoomLog* rooms = nullptr;
  const ServeMetrics* metrics = nullptr;
  const std::atomic<bool>* draining = nullptr;
  std::uint32_t default_chat_tokens = 256;
  // The manager's: which registries a request without a binding of its own may name. Such requests
  // come through SGLang's router, which waits for both servers: both check, so that both refuse.
  const Options* library = nullptr;
};

class HttpApi {
 public:
  explicit HttpApi(ApiContext context);
  void handle(net::HttpRequest request, std::shared_ptr<net::Responder> responder) const;

  // Checks a request against this server and splits its prompt into tokens.
  tl::expected<Submission, ApiError> prepare(GenerationRequest request) const;

 private:
  void generate(RequestKind kind, const net::HttpRequest& request,
                std::shared_ptr<net::Responder> responder) const;
  std::optional<ApiError> check_room(GenerationRequest& request) const;
  std::optional<ApiError> check_registry(RoomFields& room) const;
  Result<std::vector<Token>> tokenize(const GenerationRequest& request) const;
  std::vector<ReadinessCheck> readiness() const;
  net::HttpResponse answer_get(std::string_view path) const;
  ServerFacts facts() const;
  net::HttpResponse room_answer(std::string_view name) const;
  std::string metrics_text() const;

  const ApiContext context_;
  const std::int64_t created_;
};

}  // namespace kvferry::serve
