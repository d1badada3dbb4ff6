// A generation request as this server understands it, parsed out of an OpenAI-style body. What it
// can't honour is refused by name rather than ignored, because an answer that silently lacks what
// was asked for is worse than an error.
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

// Which room a request belongs to; set by the router.
struct RoomFields {
  std::string bootstrap_host;
  std::uint16_t bootstrap_port = 0;
  RoomId room;
  Binding binding;
  std::string prefill_instance;  // empty: the only one that the registry lists

  std::string bootstrap_address() const {
    return bootstrap_host + ":" + std::to_string(bootstrap_port);
  }
};

struct GenerationRequest {
  bool chat = false;
  std::string prompt;                 // completions
  std::vector<Token> prompt_tokens;   // completions given as tokens
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

enum class RequestKind : std::uint8_t { kCompletion, kChat };

tl::expected<GenerationRequest, ApiError> parse_request(RequestKind kind, std::string_view body);

}  // namespace kvferry::serve
