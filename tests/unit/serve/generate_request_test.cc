// Bodies of SGLang's /generate, and rooms as SGLang's router names them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/request.h"
#include "serve/sglang_json.h"

namespace kvferry::serve {
namespace {

using testing::HasSubstr;

GenerationRequest read(std::string_view body, RequestKind kind = RequestKind::kGenerate) {
  auto request = parse_request(kind, body);
  EXPECT_TRUE(request) << request.error().message;
  return request.value_or(GenerationRequest{});
}
ApiError error_of(std::string_view body, RequestKind kind = RequestKind::kGenerate) {
  auto request = parse_request(kind, body);
  EXPECT_FALSE(request) << body;
  return request ? ApiError{} : request.error();
}

std::string with_room(std::string_view room, std::string_view host = R"("10.0.0.1")",
                      std::string_view port = "8998") {
  std::string body = R"({"text":"x","prompt":"x","bootstrap_host":)";
  body += host;
  body += R"(,"bootstrap_port":)";
  body += port;
  body += R"(,"bootstrap_room":)";
  body += room;
  return body + "}";
}
// Only the named kind has this prompt field.
std::string for_kind(std::string body, RequestKind kind) {
  const std::string_view other =
      kind == RequestKind::kGenerate ? R"("prompt":"x",)" : R"("text":"x",)";
  return body.erase(body.find(other), other.size());
}
Binding binding_of(const std::string& body) {
  const auto request = read(for_kind(body, RequestKind::kGenerate));
  EXPECT_TRUE(request.room && request.room->binding_derived);
  return request.room ? request.room->binding : Binding{};
}

// What SGLang's router 0.3.2 makes of a client's {"text", "sampling_params"}.
TEST(GenerateRequest, ReadsWhatTheRouterSends) {
  const auto request = read(
      R"({"text":"hi","model":null,"sampling_params":{"temperature":0.0,"max_new_tokens":4,)"
      R"("top_p":0.5,"top_k":1,"stop":["a"]},"return_logprob":false,)"
      R"("return_text_in_logprobs":false,"stream":true,"log_metrics":true,)"
      R"("return_hidden_states":false,"background":false,"no_logs":false,"return_bytes":false,)"
      R"("return_entropy":false,"rid":"r1","bootstrap_host":"127.0.0.1","bootstrap_port":8998,)"
      R"("bootstrap_room":9223372036854775807})");
  EXPECT_EQ(request.kind, RequestKind::kGenerate);
  EXPECT_EQ(request.prompt, "hi");
  EXPECT_EQ(request.request_id, "r1");
  EXPECT_EQ(request.max_tokens, 4U);
  EXPECT_EQ(request.sampling.temperature, 0.0);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a"}));
  EXPECT_TRUE(request.stream);
  ASSERT_TRUE(request.room);
  EXPECT_EQ(request.room->bootstrap_address(), "127.0.0.1:8998");
  EXPECT_EQ(request.room->room.value(), 9223372036854775807U);
}

TEST(GenerateRequest, DefaultsAreThoseOfSglang) {
  const auto request = read(R"({"input_ids":[1,2,3],"sampling_params":null})");
  EXPECT_EQ(request.prompt_tokens, (std::vector<Token>{1, 2, 3}));
  EXPECT_EQ(request.max_tokens, 128U);
  EXPECT_EQ(request.sampling.temperature, 1.0);
  EXPECT_EQ(request.sampling.top_p, 1.0);
  EXPECT_FALSE(request.stream || request.has_seed || request.room);
  const auto seeded = read(R"({"text":"x","sampling_params":{"sampling_seed":-1,"top_k":-1}})");
  EXPECT_TRUE(seeded.has_seed);
  EXPECT_EQ(seeded.sampling.seed, ~std::uint64_t{0});
}

TEST(GenerateRequest, GreedyWhateverTheOrderOfTheKeys) {
  for (const char* params : {R"({"top_k":1,"temperature":0.7})", R"({"temperature":0.7,"top_k":1})",
                             R"({"temperature":1e-7})"}) {
    const auto request = read(std::string(R"({"text":"x","sampling_params":)") + params + "}");
    EXPECT_EQ(request.sampling.temperature, 0.0) << params;
  }
}

TEST(GenerateRequest, NamesWhatItRefuses) {
  struct Case {
    const char* body;
    const char* param;
    const char* message;
  };
  const Case cases[] = {
      {R"({})", "text", "missing"},
      {R"({"text":""})", "text", "missing"},
      {R"({"text":5})", "text", "not an integer"},
      {R"({"text":["a","b"]})", "text", "one request each"},
      {R"({"input_ids":[[1],[2]]})", "input_ids", "one request each"},
      {R"({"input_ids":[1,-2]})", "input_ids", "must lie"},
      {R"({"text":"x","input_ids":[1]})", "input_ids", "one of them"},
      {R"({"text":"x","prompt":"x"})", "prompt", "not supported"},
      {R"({"text":"x","rid":["a"]})", "rid", "a string, not an array"},
      {R"({"text":"x","stream":"yes"})", "stream", "a boolean"},
      {R"({"text":"x","return_logprob":true})", "return_logprob", "not supported"},
      {R"({"text":"x","lora_path":"a"})", "lora_path", "not supported"},
      {R"({"text":"x","image_data":["a"]})", "image_data", "not supported"},
      {R"({"text":"x","routed_dp_rank":1})", "routed_dp_rank", "not supported"},
      {R"({"text":"x","no_such_field":1})", "no_such_field", "not supported"},
      {R"({"text":"x","sampling_params":[]})", "sampling_params", "one request each"},
      {R"({"text":"x","sampling_params":7})", "sampling_params", "an object"},
      {R"({"text":"x","sampling_params":{"temperature":-1}})", "sampling_params.temperature",
       "between 0"},
      {R"({"text":"x","sampling_params":{"top_p":0}})", "sampling_params.top_p", "above 0"},
      {R"({"text":"x","sampling_params":{"top_k":40}})", "sampling_params.top_k", "not supported"},
      {R"({"text":"x","sampling_params":{"top_k":0}})", "sampling_params.top_k", "must lie"},
      {R"({"text":"x","sampling_params":{"max_new_tokens":0}})", "sampling_params.max_new_tokens",
       "between 1"},
      {R"({"text":"x","sampling_params":{"n":2}})", "sampling_params.n", "not supported"},
      {R"({"text":"x","sampling_params":{"regex":"a+"}})", "sampling_params.regex",
       "not supported"},
      {R"({"text":"x","sampling_params":{"stop":[""]}})", "sampling_params.stop", "1 to 256"},
      {R"({"text":"x","sampling_params":{"what":1}})", "sampling_params.what", "not supported"},
  };
  for (const auto& each : cases) {
    const ApiError error = error_of(each.body);
    EXPECT_EQ(error.status, 400) << each.body;
    EXPECT_EQ(error.param, each.param) << each.body;
    EXPECT_THAT(error.message, HasSubstr(each.message)) << each.body;
  }
}

TEST(SglangRoom, BothServersDeriveTheSameBindingOnEveryRoute) {
  const std::string body = with_room("42");
  const Binding binding = binding_of(body);
  EXPECT_FALSE(binding.is_zero());
  EXPECT_EQ(binding_of(body), binding);
  const auto completion = read(for_kind(body, RequestKind::kCompletion), RequestKind::kCompletion);
  ASSERT_TRUE(completion.room);
  EXPECT_EQ(completion.room->binding, binding);
}

TEST(SglangRoom, RoomHostAndPortEachMakeAnotherBinding) {
  const Binding binding = binding_of(with_room("42"));
  EXPECT_NE(binding_of(with_room("43")), binding);
  EXPECT_NE(binding_of(with_room("42", R"("10.0.0.2")")), binding);
  EXPECT_NE(binding_of(with_room("42", R"("10.0.0.1")", "8999")), binding);
  EXPECT_NE(binding_of(with_room("42", R"("10.0.0.1")", "null")), binding);
}

TEST(SglangRoom, ANamedBindingStays) {
  const auto request =
      read(R"({"text":"x","bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":3,)"
           R"("kvferry_binding":"00000000000000010000000000000002","kvferry_prefill":"p0"})");
  ASSERT_TRUE(request.room);
  EXPECT_FALSE(request.room->binding_derived);
  EXPECT_EQ(request.room->binding, (Binding{1, 2}));
  EXPECT_EQ(error_of(R"({"text":"x","bootstrap_host":"h","bootstrap_room":3,)"
                     R"("kvferry_binding":"00000000000000010000000000000002"})")
                .param,
            "bootstrap_port");
}

TEST(SglangRoom, NamesTheBadField) {
  const auto param = [](const std::string& body) {
    return error_of(for_kind(body, RequestKind::kGenerate)).param;
  };
  EXPECT_EQ(param(with_room("null")), "bootstrap_room");
  EXPECT_EQ(param(with_room("-1")), "bootstrap_room");
  EXPECT_EQ(param(with_room("1.5")), "bootstrap_room");
  EXPECT_EQ(param(with_room("\"1\"")), "bootstrap_room");
  EXPECT_EQ(param(with_room("18446744073709551616")), "bootstrap_room");
  EXPECT_EQ(param(with_room("1", "null")), "bootstrap_host");
  EXPECT_EQ(param(with_room("1", "\"\"")), "bootstrap_host");
  EXPECT_EQ(param(with_room("1", "7")), "bootstrap_host");
  EXPECT_EQ(param(with_room("1", "\"h\"", "0")), "bootstrap_port");
  EXPECT_EQ(param(with_room("1", "\"h\"", "65536")), "bootstrap_port");
  for (const char* list : {"[1,2]", "[]", "[null]"}) {
    const ApiError error = error_of(for_kind(with_room(list), RequestKind::kGenerate));
    EXPECT_EQ(error.param, "bootstrap_room");
    EXPECT_THAT(error.message, HasSubstr("one request each"));
  }
}

TEST(GenerateJson, SaysWhyTheAnswerEnded) {
  const AnswerHead head{RequestKind::kGenerate, "r1", "m", 0};
  EXPECT_EQ(generate_json(head, "ab", {5, 6}, {}, {3, 2}),
            R"({"text":"ab","output_ids":[5,6],"meta_info":{"id":"r1","finish_reason":null,)"
            R"("prompt_tokens":3,"completion_tokens":2,"cached_tokens":0}})");
  EXPECT_THAT(generate_json(head, "ab", {}, {"stop", Token{2}, {}}, {3, 2}),
              HasSubstr(R"("finish_reason":{"type":"stop","matched":2})"));
  EXPECT_THAT(generate_json(head, "ab", {}, {"stop", std::nullopt, "END"}, {3, 2}),
              HasSubstr(R"("finish_reason":{"type":"stop","matched":"END"})"));
  EXPECT_THAT(generate_json(head, "ab", {}, {"length", std::nullopt, {}}, {3, 2}),
              HasSubstr(R"("finish_reason":{"type":"length","length":2})"));
}

}  // namespace
}  // namespace kvferry::serve
