#include "serve/sglang_json.h"

#include <boost/json.hpp>

#include "serve/text_stream.h"

namespace kvferry::serve {
namespace {

namespace json = boost::json;

json::value finish_value(const Finish& finish, const Usage& usage) {
  if (finish.type.empty()) {
    return nullptr;
  }
  if (finish.type == "length") {
    return json::object{{"type", "length"}, {"length", usage.completion_tokens}};
  }
  json::value matched(nullptr);
  if (finish.token) {
    matched = *finish.token;
  } else if (!finish.text.empty()) {
    matched = valid_utf8(finish.text);
  }
  return json::object{{"type", finish.type}, {"matched", std::move(matched)}};
}

std::string answer(const AnswerHead& head, std::string_view text,
                   const std::vector<Token>& output_ids, json::value finish, const Usage& usage) {
  return json::serialize(
      json::object{{"text", valid_utf8(text)},
                   {"output_ids", json::array(output_ids.begin(), output_ids.end())},
                   {"meta_info", json::object{{"id", head.id},
                                              {"finish_reason", std::move(finish)},
                                              {"prompt_tokens", usage.prompt_tokens},
                                              {"completion_tokens", usage.completion_tokens},
                                              {"cached_tokens", 0}}}});
}

std::string_view disaggregation_mode(const ServerFacts& facts) {
  return facts.role == "both" ? std::string_view("null") : facts.role;
}

}  // namespace

std::string generate_json(const AnswerHead& head, std::string_view text,
                          const std::vector<Token>& output_ids, const Finish& finish,
                          const Usage& usage) {
  return answer(head, text, output_ids, finish_value(finish, usage), usage);
}

std::string generate_prefill_json(const AnswerHead& head, std::string_view text, Token first,
                                  std::uint32_t prompt_tokens) {
  return answer(head, text, {first}, json::object{{"type", "length"}, {"length", 0}},
                {prompt_tokens, 1});
}

std::string server_info_json(const EngineInfo& engine, const ServerFacts& facts) {
  return json::serialize(json::object{
      {"model_path", engine.model_name},
      {"served_model_name", engine.model_name},
      {"tokenizer_path", engine.model_name},
      {"disaggregation_mode", disaggregation_mode(facts)},
      {"disaggregation_transfer_backend", "kvferry"},
      {"tp_size", 1},
      {"dp_size", 1},
      {"pp_size", 1},
      {"page_size", engine.page_size_tokens},
      {"context_length", engine.max_sequence_tokens},
      {"max_running_requests", facts.max_requests},
      {"max_total_num_tokens", engine.cache_tokens},
      {"instance", facts.instance.empty() ? json::value(nullptr) : json::value(facts.instance)},
      {"version", KVFERRY_VERSION},
      {"frontend", "kvferry"}});
}

std::string model_info_json(const EngineInfo& engine, const ServerFacts& facts) {
  return json::serialize(json::object{{"model_path", engine.model_name},
                                      {"served_model_name", engine.model_name},
                                      {"tokenizer_path", engine.model_name},
                                      {"is_generation", true},
                                      {"preferred_sampling_params", nullptr},
                                      {"disaggregation_mode", disaggregation_mode(facts)},
                                      {"has_image_understanding", false},
                                      {"has_audio_understanding", false}});
}

}  // namespace kvferry::serve
