#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <limits>

#include "serve/json_fields.h"

// SGLang's GenerateReqInput and SamplingParams (0.5.23), as far as one engine without log
// probabilities, grammars, adapters and media can honour them.
namespace kvferry::serve {
namespace {

namespace json = boost::json;

constexpr std::uint32_t kDefaultNewTokens = 128;  // SamplingParams.max_new_tokens
constexpr double kGreedyBelow = 1e-6;             // _SAMPLING_EPS
constexpr double kMaxTemperature = 1'000;         // SGLang has no limit
constexpr std::uint64_t kAllTopK = 1U << 30;      // TOP_K_ALL
constexpr std::size_t kMaxIdBytes = 256;

bool is_integer(const json::value& value, std::int64_t wanted) {
  return value.is_int64() && value.get_int64() == wanted;
}

bool is_number(const json::value& value, double wanted) {
  return value.is_number() && value.to_number<double>() == wanted;
}

bool is_empty(const json::value& value) {
  return (value.is_string() && value.get_string().empty()) ||
         (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

template <std::size_t N>
bool is_one_of(std::string_view key, const std::array<std::string_view, N>& names) {
  return std::find(names.begin(), names.end(), key) != names.end();
}

// Sampling parameters whose only supported value is SGLang's default.
bool is_neutral_sampling(std::string_view key, const json::value& value) {
  constexpr std::array<std::string_view, 4> kZero = {"min_p", "frequency_penalty",
                                                     "presence_penalty", "min_new_tokens"};
  constexpr std::array<std::string_view, 3> kOne = {"repetition_penalty", "n", "beam_width"};
  constexpr std::array<std::string_view, 8> kEmpty = {
      "stop_token_ids", "stop_regex",     "json_schema", "regex",
      "ebnf",           "structural_tag", "logit_bias",  "custom_params"};
  if (is_one_of(key, kZero)) return is_number(value, 0);
  if (is_one_of(key, kOne)) return is_number(value, 1);
  if (is_one_of(key, kEmpty)) return is_empty(value);
  if (key == "no_stop_trim") return value.is_bool() && !value.get_bool();
  if (key == "skip_special_tokens") return value.is_bool() && value.get_bool();
  if (key == "spaces_between_special_tokens") return value.is_bool();
  if (key == "stream_interval") return is_integer(value, 1);
  return false;
}

// What is left to the end: the order of the keys must not matter.
struct Greedy {
  bool by_top_k = false;
};

void set_sampling(GenerationRequest& request, Greedy& greedy, std::string_view key,
                  const json::value& value) {
  const std::string path = fmt::format("sampling_params.{}", key);
  if (key == "max_new_tokens") {
    request.max_tokens = static_cast<std::uint32_t>(
        integer_of(path, value, 1, std::numeric_limits<std::uint32_t>::max()));
  } else if (key == "temperature") {
    const double temperature = number_of(path, value, 0, kMaxTemperature);
    request.sampling.temperature = temperature < kGreedyBelow ? 0 : temperature;
  } else if (key == "top_p") {
    request.sampling.top_p = number_of(path, value, 0, 1);
    if (request.sampling.top_p == 0) refuse(path, fmt::format("'{}' must be above 0", path));
  } else if (key == "top_k") {
    if (is_integer(value, -1)) return;
    const std::uint64_t count = integer_of(path, value, 1, kAllTopK);
    if (count != 1 && count != kAllTopK) refuse_unsupported(path);
    greedy.by_top_k = count == 1;
  } else if (key == "stop") {
    request.stop = stops_of(path, value);
  } else if (key == "ignore_eos") {
    request.ignore_eos = flag_of(path, value);
  } else if (key == "sampling_seed") {
    request.sampling.seed = seed_of(path, value);
    request.has_seed = true;
  } else if (!is_neutral_sampling(key, value)) {
    refuse_unsupported(path);
  }
}

void set_sampling_params(GenerationRequest& request, const json::value& value) {
  if (value.is_array()) {
    refuse("sampling_params",
           "'sampling_params' is an array, as for a batch; send one request each", "unsupported");
  }
  if (!value.is_object()) wrong_type("sampling_params", "an object", value);
  Greedy greedy;
  for (const auto& [key, field] : value.get_object()) {
    if (!field.is_null()) set_sampling(request, greedy, key, field);
  }
  if (greedy.by_top_k) request.sampling.temperature = 0;
}

void set_text(GenerationRequest& request, const json::value& value) {
  if (value.is_array()) {
    refuse("text", "'text' is an array: batches are not supported; send one request each",
           "unsupported");
  }
  request.prompt = text_of("text", value);
}

void set_input_ids(GenerationRequest& request, const json::value& value) {
  if (value.is_array() && !value.get_array().empty() && value.get_array()[0].is_array()) {
    refuse("input_ids", "'input_ids' holds several prompts; send one request each", "unsupported");
  }
  request.prompt_tokens = tokens_of("input_ids", value);
}

// Fields without influence on the answer of a text model on one rank.
bool is_without_effect(std::string_view key, const json::value& value) {
  constexpr std::array<std::string_view, 8> kText = {
      "model",           "user",      "session_id",         "routing_key",
      "conversation_id", "extra_key", "bootstrap_pair_key", "sampling_logprobs_mode"};
  constexpr std::array<std::string_view, 4> kFlags = {
      "log_metrics", "no_logs", "return_text_in_logprobs", "use_audio_in_video"};
  constexpr std::array<std::string_view, 3> kRanks = {"data_parallel_rank", "routed_dp_rank",
                                                      "disagg_prefill_dp_rank"};
  if (is_one_of(key, kText)) return value.is_string();
  if (is_one_of(key, kFlags)) return value.is_bool();
  if (is_one_of(key, kRanks)) return is_integer(value, 0);
  if (key == "custom_labels" || key == "external_trace_header") return value.is_object();
  if (key == "received_time") return value.is_number();
  if (key == "decode_tp_size") return is_integer(value, 1);
  if (key == "logprob_start_len") return value.is_int64() && value.get_int64() >= -1;
  if (key == "top_logprobs_num" || key == "routed_experts_start_len") return is_integer(value, 0);
  // All else may only be what it is when it is left out.
  return (value.is_bool() && !value.get_bool()) || is_empty(value);
}

void set_field(GenerationRequest& request, std::string_view key, const json::value& value) {
  if (key == "text") {
    set_text(request, value);
  } else if (key == "input_ids") {
    set_input_ids(request, value);
  } else if (key == "sampling_params") {
    set_sampling_params(request, value);
  } else if (key == "stream") {
    request.stream = flag_of(key, value);
  } else if (key == "rid") {
    request.request_id = text_of(key, value);
    if (request.request_id.size() > kMaxIdBytes) {
      refuse(key, fmt::format("'rid' has {} bytes, the limit is {}", request.request_id.size(),
                              kMaxIdBytes));
    }
  } else if (!is_without_effect(key, value)) {
    refuse_unsupported(key);
  }
}

}  // namespace

GenerationRequest read_generate(const json::object& body) {
  GenerationRequest request;
  request.kind = RequestKind::kGenerate;
  request.max_tokens = kDefaultNewTokens;
  request.return_token_ids = true;
  RoomReader room;
  for (const auto& [key, value] : body) {
    if (!value.is_null() && !room.read(key, value)) {
      set_field(request, key, value);
    }
  }
  if (!request.prompt.empty() && !request.prompt_tokens.empty()) {
    refuse("input_ids", "'text' and 'input_ids' are both there; send one of them");
  }
  if (request.prompt.empty() && request.prompt_tokens.empty()) {
    refuse("text", "'text' and 'input_ids' are missing or empty; send one of them", "missing");
  }
  request.room = room.finish();
  return request;
}

}  // namespace kvferry::serve
