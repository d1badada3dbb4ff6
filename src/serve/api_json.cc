#include "serve/api_json.h"

#include <algorithm>
#include <boost/json.hpp>

#include "serve/text_stream.h"

namespace kvferry::serve {
namespace {

namespace json = boost::json;

json::value text_or_null(std::string_view text) {
  return text.empty() ? json::value(nullptr) : json::value(valid_utf8(text));
}

bool is_chat(const AnswerHead& head) { return head.kind == RequestKind::kChat; }

json::object head_object(const AnswerHead& head, std::string_view object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

json::object usage_object(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

void add_tokens(json::object& choice, const std::vector<Token>* token_ids) {
  if (token_ids != nullptr) {
    choice["token_ids"] = json::array(token_ids->begin(), token_ids->end());
  }
}

json::object room_object(const RoomStats& stats) {
  json::object room{{"role", to_string(stats.role)},
                    {"room", stats.room.value()},
                    {"binding", stats.binding.to_hex()},
                    {"outcome", stats.outcome},
                    {"failure", text_or_null(stats.failure)},
                    {"failure_code", text_or_null(stats.failure_code)},
                    {"prompt_tokens", stats.prompt_tokens},
                    {"pages", stats.pages},
                    {"bytes", stats.bytes},
                    {"queued_ms", stats.queued_ms}};
  if (stats.role == Role::kPrefill) {
    room["prefill_ms"] = stats.prefill_ms;
    room["landed_bytes_at_prefill_end"] = stats.landed_bytes_at_prefill_end;
    room["first_page_before_prefill_end"] = stats.first_page_before_prefill_end;
    room["transfer_after_prefill_ms"] = stats.transfer_after_prefill_ms;
  } else {
    room["transfer_ms"] = stats.transfer_ms;
    room["first_token_ms"] = stats.first_token_ms;
    room["import_ms"] = stats.import_ms;
    room["answer_tokens"] = stats.answer_tokens;
  }
  return room;
}

}  // namespace

std::string error_json(const ApiError& error) {
  return json::serialize(json::object{{"error", json::object{{"message", valid_utf8(error.message)},
                                                             {"type", error.type},
                                                             {"param", text_or_null(error.param)},
                                                             {"code", text_or_null(error.code)}}}});
}

std::string answer_json(const AnswerHead& head, std::string_view text,
                        std::string_view finish_reason, const Usage& usage,
                        const std::vector<Token>* token_ids) {
  json::object answer = head_object(head, is_chat(head) ? "chat.completion" : "text_completion");
  json::object choice{{"index", 0}, {"finish_reason", finish_reason}, {"logprobs", nullptr}};
  if (is_chat(head)) {
    choice["message"] = json::object{{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  add_tokens(choice, token_ids);
  answer["choices"] = json::array{std::move(choice)};
  answer["usage"] = usage_object(usage);
  return json::serialize(answer);
}

std::string chunk_json(const AnswerHead& head, std::string_view text, bool first,
                       std::string_view finish_reason, const std::vector<Token>* token_ids) {
  json::object chunk =
      head_object(head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
  json::object choice{
      {"index", 0}, {"finish_reason", text_or_null(finish_reason)}, {"logprobs", nullptr}};
  if (is_chat(head)) {
    json::object delta;
    if (first) {
      delta["role"] = "assistant";
    }
    if (first || !text.empty()) {
      delta["content"] = text;
    }
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  add_tokens(choice, token_ids);
  chunk["choices"] = json::array{std::move(choice)};
  return json::serialize(chunk);
}

std::string usage_chunk_json(const AnswerHead& head, const Usage& usage) {
  json::object chunk =
      head_object(head, is_chat(head) ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = json::array();
  chunk["usage"] = usage_object(usage);
  return json::serialize(chunk);
}

std::string readiness_json(std::string_view instance, std::span<const ReadinessCheck> checks) {
  json::array list;
  bool ready = true;
  for (const auto& check : checks) {
    ready = ready && check.ok;
    list.push_back(json::object{
        {"name", check.name}, {"ok", check.ok}, {"detail", text_or_null(check.detail)}});
  }
  return json::serialize(json::object{{"ready", ready},
                                      {"instance", text_or_null(std::string(instance))},
                                      {"checks", std::move(list)}});
}

std::string models_json(const EngineInfo& engine, std::int64_t created) {
  json::object model{{"id", engine.model_name},
                     {"object", "model"},
                     {"created", created},
                     {"owned_by", "kvferry"},
                     {"max_model_len", engine.max_sequence_tokens}};
  return json::serialize(json::object{{"object", "list"}, {"data", json::array{std::move(model)}}});
}

std::string pairs_json(std::span<const PairState> pairs) {
  json::array list;
  for (const auto& pair : pairs) {
    list.push_back(json::object{{"peer", pair.peer},
                                {"instance", text_or_null(pair.instance)},
                                {"ready", pair.ready},
                                {"reason", text_or_null(pair.reason)},
                                {"last_heard_ms", pair.last_heard_ms},
                                {"path", text_or_null(pair.path)},
                                {"path_why", text_or_null(pair.path_why)}});
  }
  return json::serialize(json::object{{"pairs", std::move(list)}});
}

std::string room_json(const RoomStats& stats) { return json::serialize(room_object(stats)); }

std::string rooms_json(std::span<const RoomStats> rooms) {
  json::array list;
  for (const auto& each : rooms) {
    list.push_back(room_object(each));
  }
  return json::serialize(json::object{{"rooms", std::move(list)}});
}

std::string prefill_json(const AnswerHead& head, const RoomStats& stats) {
  json::object answer = head_object(head, "kvferry.prefill");
  answer["choices"] = json::array();
  answer["usage"] = usage_object({stats.prompt_tokens, 0});
  answer["room"] = stats.room.value();
  answer["stats"] = room_object(stats);
  return json::serialize(answer);
}

}  // namespace kvferry::serve
