#include "serve/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <limits>

namespace kvferry::serve {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 256;

struct Refused {
  ApiError error;
};

[[noreturn]] void refuse(std::string_view param, std::string message, std::string code = {}) {
  throw Refused{
      {400, std::move(message), "invalid_request_error", std::string(param), std::move(code)}};
}

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

[[noreturn]] void wrong_type(std::string_view param, std::string_view wanted,
                             const json::value& value) {
  refuse(param, fmt::format("'{}' must be {}, not {}", param, wanted, kind_name(value)),
         "invalid_type");
}

std::string text_of(std::string_view param, const json::value& value) {
  if (!value.is_string()) wrong_type(param, "a string", value);
  return std::string(value.get_string());
}

bool flag_of(std::string_view param, const json::value& value) {
  if (!value.is_bool()) wrong_type(param, "a boolean", value);
  return value.get_bool();
}

double number_of(std::string_view param, const json::value& value, double low, double high) {
  if (!value.is_number()) wrong_type(param, "a number", value);
  const double number = value.to_number<double>();
  if (!(number >= low && number <= high)) {
    refuse(param,
           fmt::format("'{}' is {}; it must lie between {} and {}", param, number, low, high));
  }
  return number;
}

std::uint64_t integer_of(std::string_view param, const json::value& value, std::uint64_t low,
                         std::uint64_t high) {
  if (!value.is_int64() && !value.is_uint64()) wrong_type(param, "an integer", value);
  const bool negative = value.is_int64() && value.get_int64() < 0;
  const std::uint64_t number = negative ? 0 : value.to_number<std::uint64_t>();
  if (negative || number < low || number > high) {
    refuse(param, fmt::format("'{}' must lie between {} and {}", param, low, high));
  }
  return number;
}

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
  for (const auto& item : items) {
    request.prompt_tokens.push_back(
        static_cast<Token>(integer_of("prompt", item, 0, std::numeric_limits<Token>::max())));
  }
}

void set_stop(GenerationRequest& request, const json::value& value) {
  if (value.is_string()) {
    request.stop.emplace_back(value.get_string());
  } else if (value.is_array()) {
    for (const auto& item : value.get_array()) {
      request.stop.push_back(text_of("stop", item));
    }
  } else {
    wrong_type("stop", "a string or an array of strings", value);
  }
  if (request.stop.size() > kMaxStops) {
    refuse("stop",
           fmt::format("'stop' has {} strings, the limit is {}", request.stop.size(), kMaxStops));
  }
  for (const auto& text : request.stop) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      refuse("stop", fmt::format("a stop string has {} bytes; 1 to {} are possible", text.size(),
                                 kMaxStopBytes));
    }
  }
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
  if (key == "logprobs" || key == "echo") {
    return value.is_bool() && !value.get_bool();
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
    if (!value.is_int64() && !value.is_uint64()) wrong_type(key, "an integer", value);
    request.sampling.seed =
        value.is_int64() ? static_cast<std::uint64_t>(value.get_int64()) : value.get_uint64();
    request.has_seed = true;
  } else if (key == "max_tokens" || key == "max_completion_tokens") {
    request.max_tokens = static_cast<std::uint32_t>(
        integer_of(key, value, 1, std::numeric_limits<std::uint32_t>::max()));
  } else if (key == "ignore_eos") {
    request.ignore_eos = flag_of(key, value);
  } else if (key == "stop") {
    set_stop(request, value);
  } else {
    return false;
  }
  return true;
}

bool set_room(RoomFields& room, std::string_view key, const json::value& value) {
  if (key == "bootstrap_host") {
    room.bootstrap_host = text_of(key, value);
  } else if (key == "bootstrap_port") {
    room.bootstrap_port = static_cast<std::uint16_t>(integer_of(key, value, 1, 65'535));
  } else if (key == "bootstrap_room") {
    room.room = RoomId(integer_of(key, value, 0, std::numeric_limits<std::uint64_t>::max()));
  } else if (key == "kvferry_binding") {
    const auto binding = Binding::from_hex(text_of(key, value));
    if (!binding || binding->is_zero()) {
      refuse(key, "'kvferry_binding' must be 32 hexadecimal digits, not all zero");
    }
    room.binding = *binding;
  } else if (key == "kvferry_prefill") {
    room.prefill_instance = text_of(key, value);
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
  } else if (key == "prompt" && !request.chat) {
    set_prompt(request, value);
  } else if (key == "messages" && request.chat) {
    request.messages = messages_of(value);
  } else if (!set_sampling(request, key, value) && !is_neutral(key, value)) {
    refuse(key, fmt::format("'{}' with this value is not supported by this server", key),
           "unsupported");
  }
}

GenerationRequest parse_object(RequestKind kind, const json::object& body) {
  GenerationRequest request;
  request.chat = kind == RequestKind::kChat;
  RoomFields room;
  std::uint32_t room_fields = 0;
  for (const auto& [key, value] : body) {
    if (value.is_null()) {
      continue;  // As absent: clients send null for what they leave to the server.
    }
    if (set_room(room, key, value)) {
      room_fields += std::string_view(key) != "kvferry_prefill";
    } else {
      set_field(request, key, value);
    }
  }
  if (request.chat ? request.messages.empty()
                   : request.prompt.empty() && request.prompt_tokens.empty()) {
    const std::string_view missing = request.chat ? "messages" : "prompt";
    refuse(missing, fmt::format("'{}' is missing or empty", missing), "missing");
  }
  if (room_fields == 4) {
    request.room = room;
  } else if (room_fields != 0) {
    for (const std::string_view name :
         {"bootstrap_host", "bootstrap_port", "bootstrap_room", "kvferry_binding"}) {
      const auto* field = body.if_contains(name);
      if (field == nullptr || field->is_null()) {
        refuse(name,
               fmt::format("'{}' is missing: the fields of a room come together, from the router",
                           name),
               "missing");
      }
    }
  }
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
    return parse_object(kind, value.get_object());
  } catch (Refused& refused) {
    return tl::unexpected(std::move(refused.error));
  }
}

}  // namespace kvferry::serve
