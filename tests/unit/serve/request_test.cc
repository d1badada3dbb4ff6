#include "serve/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_json.h"

namespace kvferry::serve {
namespace {

using testing::HasSubstr;

GenerationRequest completion(std::string_view body) {
  auto request = parse_request(RequestKind::kCompletion, body);
  EXPECT_TRUE(request) << request.error().message;
  return request.value_or(GenerationRequest{});
}
ApiError completion_error(std::string_view body) {
  auto request = parse_request(RequestKind::kCompletion, body);
  EXPECT_FALSE(request) << body;
  return request ? ApiError{} : request.error();
}
ApiError chat_error(std::string_view body) {
  auto request = parse_request(RequestKind::kChat, body);
  EXPECT_FALSE(request) << body;
  return request ? ApiError{} : request.error();
}

TEST(Request, ReadsACompletion) {
  const auto request = completion(
      R"({"model":"m","prompt":"Hi","max_tokens":5,"temperature":0,"top_p":0.5,"seed":7,)"
      R"("stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},"n":1,"user":null,)"
      R"("presence_penalty":0,"logit_bias":{},"ignore_eos":true,"return_token_ids":true})");
  EXPECT_EQ(request.kind, RequestKind::kCompletion);
  EXPECT_EQ(request.prompt, "Hi");
  EXPECT_EQ(request.max_tokens, 5U);
  EXPECT_EQ(request.sampling.temperature, 0.0);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.seed, 7U);
  EXPECT_TRUE(request.has_seed);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.stream && request.include_usage && request.ignore_eos &&
              request.return_token_ids);
  EXPECT_FALSE(request.room);
}

TEST(Request, ReadsPromptForms) {
  EXPECT_EQ(completion(R"({"prompt":["one"]})").prompt, "one");
  EXPECT_EQ(completion(R"({"prompt":[1,2,3]})").prompt_tokens, (std::vector<Token>{1, 2, 3}));
  EXPECT_THAT(completion_error(R"({"prompt":["a","b"]})").message, HasSubstr("several prompts"));
  EXPECT_THAT(completion_error(R"({"prompt":[1,-2]})").message, HasSubstr("'prompt' must lie"));
}

TEST(Request, ReadsAChat) {
  auto request = parse_request(
      RequestKind::kChat,
      R"({"messages":[{"role":"system","content":"S"},)"
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],)"
      R"("max_completion_tokens":9})");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_EQ(request->messages.size(), 2U);
  EXPECT_EQ(request->messages[1].content, "ab");
  EXPECT_EQ(request->max_tokens, 9U);
}

TEST(Request, ReadsARoom) {
  const auto request = completion(
      R"({"prompt":"x","bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":42,)"
      R"("kvferry_binding":"00000000000000010000000000000002","kvferry_prefill":"p0"})");
  ASSERT_TRUE(request.room);
  EXPECT_EQ(request.room->bootstrap_address(), "10.0.0.1:8998");
  EXPECT_EQ(request.room->room, RoomId(42));
  EXPECT_EQ(request.room->binding, (Binding{1, 2}));
  EXPECT_EQ(request.room->prefill_instance, "p0");
}

TEST(Request, NamesTheMissingRoomField) {
  // Without a binding it may be a room of SGLang's router (generate_request_test.cc).
  EXPECT_EQ(completion_error(R"({"prompt":"x","bootstrap_host":"h","bootstrap_port":1})").param,
            "bootstrap_room");
  EXPECT_EQ(completion_error(R"({"prompt":"x","bootstrap_port":1,"bootstrap_room":3})").param,
            "bootstrap_host");
  EXPECT_EQ(completion_error(R"({"prompt":"x","kvferry_binding":"zz"})").param, "kvferry_binding");
  EXPECT_EQ(completion_error(R"({"prompt":"x","bootstrap_port":0})").param, "bootstrap_port");
}

TEST(Request, TellsWhereJsonIsInvalid) {
  const ApiError error = completion_error(R"({"prompt": "x", oops})");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "invalid_json");
  EXPECT_THAT(error.message, HasSubstr("at byte 16"));
  EXPECT_THAT(completion_error(R"({"prompt": "x")").message, HasSubstr("incomplete"));
  EXPECT_THAT(completion_error(R"({"prompt": "x"} {})").message, HasSubstr("not valid JSON"));
  EXPECT_THAT(completion_error("").message, HasSubstr("not valid JSON"));
  EXPECT_THAT(completion_error("[]").message, HasSubstr("not an array"));
}

TEST(Request, NamesWhatItRefuses) {
  struct Case {
    const char* body;
    const char* param;
    const char* message;
  };
  const Case cases[] = {
      {R"({"prompt":"x","n":2})", "n", "not supported"},
      {R"({"prompt":"x","logprobs":3})", "logprobs", "not supported"},
      {R"({"prompt":"x","suffix":"y"})", "suffix", "not supported"},
      {R"({"prompt":"x","presence_penalty":0.5})", "presence_penalty", "not supported"},
      {R"({"prompt":"x","max_tokens":"5"})", "max_tokens", "must be an integer, not a string"},
      {R"({"prompt":"x","max_tokens":0})", "max_tokens", "must lie between 1"},
      {R"({"prompt":"x","max_tokens":2.5})", "max_tokens", "an integer, not a number"},
      {R"({"prompt":"x","temperature":3})", "temperature", "between 0 and 2"},
      {R"({"prompt":"x","temperature":true})", "temperature", "not a boolean"},
      {R"({"prompt":"x","stream":1})", "stream", "a boolean, not an integer"},
      {R"({"prompt":"x","stop":[1]})", "stop", "a string, not an integer"},
      {R"({"prompt":"x","stop":""})", "stop", "1 to 256"},
      {R"({"prompt":"x","stream_options":{"x":1}})", "stream_options.x", "not supported"},
      {R"({"prompt":5})", "prompt", "not an integer"},
      {R"({"prompt":""})", "prompt", "missing or empty"},
      {R"({})", "prompt", "missing"},
      {R"({"prompt":"x","messages":[]})", "messages", "not supported"},
  };
  for (const auto& each : cases) {
    const ApiError error = completion_error(each.body);
    EXPECT_EQ(error.status, 400) << each.body;
    EXPECT_EQ(error.param, each.param) << each.body;
    EXPECT_THAT(error.message, HasSubstr(each.message)) << each.body;
  }
  EXPECT_EQ(chat_error(R"({"messages":[]})").param, "messages");
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"user"}]})").param, "messages[0]");
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})").param,
            "messages[0].content[0]");
  EXPECT_EQ(chat_error(R"({"messages":[{"role":"user","content":"x","tool_calls":[]}]})").param,
            "messages[0].tool_calls");
}

TEST(Request, ErrorHasTheUsualShape) {
  EXPECT_EQ(
      error_json({400, "bad \"x\"", "invalid_request_error", "x", ""}),
      R"({"error":{"message":"bad \"x\"","type":"invalid_request_error","param":"x","code":null}})");
}

TEST(Request, FailuresKeepTheirClassAndCause) {
  const ApiError error = to_api_error(
      {FailureCode::kPeerLost, FailureWhere::kPeer, "silent for 3000 ms", "10.0.0.2:9", 0});
  EXPECT_EQ(error.status, 502);
  EXPECT_EQ(error.code, "peer-lost");
  EXPECT_EQ(error.message, "silent for 3000 ms (peer 10.0.0.2:9)");
}

}  // namespace
}  // namespace kvferry::serve
