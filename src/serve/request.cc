#include "serve/request.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>

#include "serve/json_fields.h"

namespace kvferry::serve {
namespace {

namespace json = boost::json;

// Part of a chat message: a string, or an array of text parts.
std::string content_of(const std::string& param, const json::value& value) {
  if (value.is_string()) {
    return std::string(value.get_string());
  }
  if (!value.is_array()) wrong_type(param, "a string or an array of text parts", value);
  std::string text;
  std::size_t index = 0;
  for (const auto& part : value.get_array()) {
    const std::string name = fmt::format("{}[{}]", param, index++);
    if (!part.is_object()) wrong_type(name, "an object", part);
    const auto* type = part.get_object().if_contains("type");
    const auto* content = part.get_object().if_contains("text");
    if (type == nullptr || text_of(name + ".type", *type) != "text" || content == nullptr) {
      refuse(name, fmt::format("'{}' is not a text part; only text is supported", name),
             "unsupported");
    }
    text += text_of(name + ".text", *content);
  }
  return text;
}

std::vector<ChatMessage> messages_of(const json::value& value) {
  if (!value.is_array()) wrong_type("messages", "an array", value);
  if (value.get_array().empty()) refuse("messages", "'messages' must not be empty");
  std::vector<ChatMessage> messages;
  for (const auto& item : value.get_array()) {
    const std::string name = fmt::format("messages[{}]", messages.size());
    if (!item.is_object()) wrong_type(name, "an object", item);
    ChatMessage message;
    bool has_content = false;
    for (const auto& [key, field] : item.get_object()) {
      const std::string path = fmt::format("{}.{}", name, std::string_view(key));
      if (key == "role") {
        message.role = text_of(path, field);
      } else if (key == "content") {
        message.content = content_of(path, field);
        has_content = true;
      } else if (key != "name") {
        refuse(path, fmt::format("'{}' is not supported", path), "unsupported");
      }
    }
    if (message.role.empty() || !has_content) {
      refuse(name, fmt::format("'{}' needs 'role' and 'content'", name));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

void set_prompt(GenerationRequest& request, const json::value& value) {
  if (value.is_string()) {
    request.prompt = std::string(value.get_string());
    return;
  }
  if (!value.is_array()) wrong_type("prompt", "a string or an array of tokens", value);
  const auto& items = value.get_array();
  if (items.size() == 1 && items[0].is_string()) {
    request.prompt = std::string(items[0].get_string());
    return;
  }
  if (!items.empty() && (items[0].is_string() || items[0].is_array())) {
    refuse("prompt", "'prompt' holds several prompts; send one request each", "unsupported");
  }
  request.prompt_tokens = tokens_of("prompt", value);
}

void set_stream_options(GenerationRequest& request, const json::value& value) {
  if (!value.is_object()) wrong_type("stream_options", "an object", value);
  for (const auto& [key, field] : value.get_object()) {
    if (key != "include_usage") {
      const std::string path = fmt::format("stream_options.{}", std::string_view(key));
      refuse(path, fmt::format("'{}' is not supported", path), "unsupported");
    }
    request.include_usage = flag_of("stream_options.include_usage", field);
  }
}

// Fields whose only supported value is the one that changes nothing.
bool is_neutral(std::string_view key, const json::value& value) {
  if (key == "n" || key == "best_of") {
    return value.is_number() && value.to_number<double>() == 1.0;
  }
  if (key == "presence_penalty" || key == "frequency_penalty" || key == "top_logprobs") {
    return value.is_number() && value.to_number<double>() == 0.0;
  }
  // From "no_stop_trim" on: what SGLang's router adds to every request.
  if (key == "logprobs" || key == "echo" || key == "no_stop_trim" ||
      key == "continue_final_message" || key == "return_hidden_states") {
    return value.is_bool() && !value.get_bool();
  }
  if (key == "skip_special_tokens") {
    return value.is_bool() && value.get_bool();
  }
  if (key == "separate_reasoning" || key == "stream_reasoning") {
    return value.is_bool();  // There is no reasoning to tell apart.
  }
  if (key == "logit_bias") {
    return value.is_object() && value.get_object().empty();
  }
  if (key == "response_format") {
    const auto* type = value.is_object() ? value.get_object().if_contains("type") : nullptr;
    return type != nullptr && type->is_string() && type->get_string() == "text";
  }
  return false;
}

bool set_sampling(GenerationRequest& request, std::string_view key, const json::value& value) {
  if (key == "temperature") {
    request.sampling.temperature = number_of(key, value, 0.0, 2.0);
  } else if (key == "top_p") {
    request.sampling.top_p = number_of(key, value, 0.0, 1.0);
  } else if (key == "seed") {
    request.sampling.seed = seed_of(key, value);
    request.has_seed = true;
  } else if (key == "max_tokens" || key == "max_completion_tokens") {
    request.max_tokens = static_cast<std::uint32_t>(
        integer_of(key, value, 1, std::numeric_limits<std::uint32_t>::max()));
  } else if (key == "ignore_eos") {
    request.ignore_eos = flag_of(key, value);
  } else if (key == "stop") {
    request.stop = stops_of(key, value);
  } else {
    return false;
  }
  return true;
}

void set_field(GenerationRequest& request, std::string_view key, const json::value& value) {
  if (key == "model" || key == "user") {
    text_of(key, value);  // One model per server; its name is told in the answer.
  } else if (key == "stream") {
    request.stream = flag_of(key, value);
  } else if (key == "stream_options") {
    set_stream_options(request, value);
  } else if (key == "return_token_ids") {
    request.return_token_ids = flag_of(key, value);
  } else if (key == "prompt" && !request.chat()) {
    set_prompt(request, value);
  } else if (key == "messages" && request.chat()) {
    request.messages = messages_of(value);
  } else if (!set_sampling(request, key, value) && !is_neutral(key, value)) {
    refuse_unsupported(key);
  }
}

GenerationRequest read_openai(RequestKind kind, const json::object& body) {
  GenerationRequest request;
  request.kind = kind;
  RoomReader room;
  for (const auto& [key, value] : body) {
    if (value.is_null()) {
      continue;  // As absent: clients send null for what they leave to the server.
    }
    if (!room.read(key, value)) {
      set_field(request, key, value);
    }
  }
  if (request.chat() ? request.messages.empty()
                     : request.prompt.empty() && request.prompt_tokens.empty()) {
    const std::string_view missing = request.chat() ? "messages" : "prompt";
    refuse(missing, fmt::format("'{}' is missing or empty", missing), "missing");
  }
  request.room = room.finish();
  return request;
}

}  // namespace

ApiError to_api_error(const Failure& failure) {
  const int status = http_status(failure.code);
  std::string message = failure.what;
  if (!failure.peer.empty()) {
    message += fmt::format(" (peer {})", failure.peer);
  }
  return {status, std::move(message), status < 500 ? "invalid_request_error" : "server_error", "",
          std::string(to_string(failure.code))};
}

tl::expected<GenerationRequest, ApiError> parse_request(RequestKind kind, std::string_view body) {
  json::error_code error;
  json::parser parser;
  const std::size_t read = parser.write_some(body, error);
  if (!error && read < body.size()) {
    error = json::error::extra_data;
  }
  if (error) {
    return tl::unexpected(ApiError{
        400, fmt::format("the body is not valid JSON: {} at byte {}", error.message(), read),
        "invalid_request_error", "", "invalid_json"});
  }
  const json::value value = parser.release();
  if (!value.is_object()) {
    return tl::unexpected(
        ApiError{400, fmt::format("the body must be a JSON object, not {}", kind_name(value)),
                 "invalid_request_error", "", "invalid_type"});
  }
  try {
    return kind == RequestKind::kGenerate ? read_generate(value.get_object())
                                          : read_openai(kind, value.get_object());
  } catch (Refused& refused) {
    return tl::unexpected(std::move(refused.error));
  }
}

}  // namespace kvferry::serve
