// The JSON texts of SGLang's own routes: /generate, /server_info and /model_info, with the fields
// that SGLang 0.5.23 gives them as far as this server has something to say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api_json.h"

namespace kvferry::serve {

// Why an answer ended.
struct Finish {
  std::string_view type;       // "stop", "length"; empty: it goes on
  std::optional<Token> token;  // "stop": the token that ends answers, else the stop string
  std::string_view text;
};

// One whole answer, or one event of a stream; SGLang's events each hold the text and the tokens
// from the start. output_ids and usage count the token that ended the answer, text does not show
// it.
std::string generate_json(const AnswerHead& head, std::string_view text,
                          const std::vector<Token>& output_ids, const Finish& finish,
                          const Usage& usage);
// Prefill's own answer: the first token alone, as if the answer were one token long.
std::string generate_prefill_json(const AnswerHead& head, std::string_view text, Token first,
                                  std::uint32_t prompt_tokens);

struct ServerFacts {
  std::string_view role;      // "prefill", "decode", "both"
  std::string_view instance;  // empty: null
  std::uint32_t max_requests = 0;
};
// disaggregation_mode is "null" in role both, as SGLang calls a server that does both.
std::string server_info_json(const EngineInfo& engine, const ServerFacts& facts);
std::string model_info_json(const EngineInfo& engine, const ServerFacts& facts);

}  // namespace kvferry::serve
