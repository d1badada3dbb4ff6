// A generation request as this server understands it, parsed out of the body of an OpenAI-style
// route or of SGLang's /generate. What it can't honour is refused by name rather than ignored,
// because an answer that silently lacks what was asked for is worse than an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/ids.h"
#include "kvferry/status.h"
#include "serve/engine.h"
#include "serve/sampler.h"

namespace kvferry::serve {

// An error in OpenAI's shape: {"error":{"message","type","param","code"}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // empty: null
  std::string code;   // empty: null
};

// The failure's own HTTP class, its code's name, and its first cause as the message.
ApiError to_api_error(const Failure& failure);

// Which room a request belongs to; set by the router. kvferry's router names a binding. SGLang's
// has none: there it is derived from room, host and port, so that a room number which is used again
// with the same registry is told apart by nothing (rule 8's weaker class).
struct RoomFields {
  std::string bootstrap_host;
  std::uint16_t bootstrap_port = 0;  // 0: the one that this server knows on that host
  RoomId room;
  Binding binding;
  bool binding_derived = false;
  std::string prefill_instance;  // empty: the only one that the registry lists
  std::string registry;          // host:port that stands for a port of 0; else empty

  std::string bootstrap_address() const {
    return registry.empty() ? bootstrap_host + ":" + std::to_string(bootstrap_port) : registry;
  }
};

// Which route's body, and with it the shape of the answer.
enum class RequestKind : std::uint8_t { kCompletion, kChat, kGenerate };

struct GenerationRequest {
  RequestKind kind = RequestKind::kCompletion;
  bool chat() const { return kind == RequestKind::kChat; }

  std::string request_id;             // /generate's rid; empty: the server names it
  std::string prompt;                 // completions and /generate
  std::vector<Token> prompt_tokens;   // those given as tokens
  std::vector<ChatMessage> messages;  // chat
  std::optional<std::uint32_t> max_tokens;
  std::vector<std::string> stop;
  SamplerOptions sampling;
  bool has_seed = false;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;
  bool return_token_ids = false;
  std::optional<RoomFields> room;
};

tl::expected<GenerationRequest, ApiError> parse_request(RequestKind kind, std::string_view body);

}  // namespace kvferry::serve
