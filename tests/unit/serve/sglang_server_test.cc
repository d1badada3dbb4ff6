// SGLang's routes over real sockets: what its router would send, sent to both servers.
#include <gmock/gmock.h>

#include "server_fleet.h"

namespace kvferry::serve {
namespace {

using testing::HasSubstr;
namespace json = boost::json;

ServeOptions sglang_options(std::uint32_t prefill_delay_ms = 0) {
  ServeOptions options;
  options.engine = EngineKind::kSynthetic;
  options.synthetic.prefill_delay_ms = prefill_delay_ms;
  options.synthetic.max_sequences = 8;
  options.pool_pages = 64;
  return options;
}

std::string sglang_fields(std::size_t bytes, const std::string& more = "") {
  return R"("text":")" + std::string(bytes, 'k') +
         R"(","sampling_params":{"temperature":0,"max_new_tokens":30})" + more;
}

json::value ended(const net::HttpResponse& response) {
  json::value answer = json::parse(response.body);
  answer.at("meta_info").as_object().erase("id");
  return answer;
}

// JSON of the events of a stream; the last must be the end mark.
std::vector<json::value> events(const std::string& body) {
  std::vector<json::value> values;
  std::size_t at = 0;
  while (body.compare(at, 6, "data: ") == 0) {
    const std::size_t end = body.find("\n\n", at);
    const std::string text = body.substr(at + 6, end - at - 6);
    at = end + 2;
    if (text == "[DONE]") {
      EXPECT_EQ(at, body.size());
      return values;
    }
    values.push_back(json::parse(text));
  }
  ADD_FAILURE() << "no end mark: " << body;
  return values;
}

TEST(SglangRoutes, SplitServingAnswersAsOneProcess) {
  Fleet fleet(sglang_options());
  ASSERT_TRUE(fleet.paired);
  for (const bool name_port : {true, false}) {
    const auto answer =
        fleet.ask_both("/generate", fleet.with_sglang_room(sglang_fields(200), 7, name_port)).get();
    ASSERT_EQ(answer.decode.status, 200) << answer.decode.body;
    ASSERT_EQ(answer.prefill.status, 200) << answer.prefill.body;
    const auto alone =
        fleet.fetch(*fleet.both, "POST", "/generate", "{" + sglang_fields(200) + "}");
    ASSERT_EQ(alone.status, 200) << alone.body;
    EXPECT_EQ(ended(answer.decode), ended(alone));
    EXPECT_EQ(ended(alone).at("output_ids").as_array().size(),
              ended(alone).at("meta_info").at("completion_tokens").to_number<std::size_t>());
    // As SGLang's prefill: the first token, "length".
    const json::value prefill = ended(answer.prefill);
    EXPECT_EQ(prefill.at("output_ids").at(0), ended(alone).at("output_ids").at(0));
    EXPECT_EQ(prefill.at("meta_info").at("finish_reason").at("type"), "length");
  }
  EXPECT_TRUE(fleet.settles());
}

TEST(SglangRoutes, StreamedEventsHoldTheTextFromTheStart) {
  Fleet fleet(sglang_options());
  ASSERT_TRUE(fleet.paired);
  const std::string more = R"(,"stream":true,"rid":"mine")";
  const auto answer =
      fleet.ask_both("/generate", fleet.with_sglang_room(sglang_fields(100, more), 8)).get();
  const auto alone = fleet.fetch(*fleet.both, "POST", "/generate", "{" + sglang_fields(100) + "}");
  const auto chunks = events(answer.decode.body);
  ASSERT_GT(chunks.size(), 1U);
  std::string before;
  std::size_t tokens = 0;
  for (const auto& chunk : chunks) {
    const std::string text(chunk.at("text").as_string());
    EXPECT_EQ(text.compare(0, before.size(), before), 0) << text;
    EXPECT_GT(chunk.at("output_ids").as_array().size(), tokens);
    EXPECT_EQ(chunk.at("meta_info").at("id"), "mine");
    EXPECT_EQ(chunk.at("meta_info").at("finish_reason").is_null(), &chunk != &chunks.back());
    before = text;
    tokens = chunk.at("output_ids").as_array().size();
  }
  json::value last = chunks.back();
  last.at("meta_info").as_object().erase("id");
  EXPECT_EQ(last, ended(alone));
  EXPECT_EQ(events(answer.prefill.body).size(), 1U);
}

TEST(SglangRoutes, ARoomNumberIsUsedAgainWhenItIsOver) {
  Fleet fleet(sglang_options());
  ASSERT_TRUE(fleet.paired);
  json::value first;
  for (int round = 0; round < 3; ++round) {
    const auto answer =
        fleet.ask_both("/generate", fleet.with_sglang_room(sglang_fields(90), 5)).get();
    ASSERT_EQ(answer.prefill.status, 200) << round << answer.prefill.body;
    ASSERT_EQ(answer.decode.status, 200) << round << answer.decode.body;
    if (round == 0) first = ended(answer.decode);
    EXPECT_EQ(ended(answer.decode), first);
  }
}

TEST(SglangRoutes, ASecondRequestWithARunningRoomIsRefused) {
  Fleet fleet(sglang_options(100));
  ASSERT_TRUE(fleet.paired);
  const std::string body = fleet.with_sglang_room(sglang_fields(1'000), 9);
  auto running = fleet.ask_both("/generate", body);
  ASSERT_TRUE(fleet.eventually([&] {
    return fleet.metric(*fleet.prefill, "kvferry_prompt_tokens_total") > 0 &&
           fleet.metric(*fleet.decode, "kvferry_pool_pages_taken_total") > 0;
  }));
  for (const auto* server : {fleet.prefill.get(), fleet.decode.get()}) {
    const auto second = fleet.fetch(*server, "POST", "/generate", body);
    EXPECT_EQ(second.status, 409) << second.body;
    EXPECT_THAT(second.body, HasSubstr("duplicate-room"));
  }
  const auto first = running.get();
  EXPECT_EQ(first.prefill.status, 200) << first.prefill.body;
  EXPECT_EQ(first.decode.status, 200) << first.decode.body;
  EXPECT_TRUE(fleet.settles());
}

TEST(SglangRoutes, BothServersRefuseARegistryThatTheyDoNotKnow) {
  Fleet fleet(sglang_options());
  ASSERT_TRUE(fleet.paired);
  const std::string other_host = "{" + sglang_fields(9) +
                                 R"(,"bootstrap_host":"203.0.113.9","bootstrap_port":80,)"
                                 R"("bootstrap_room":1})";
  const std::string no_port = "{" + sglang_fields(9) +
                              R"(,"bootstrap_host":"203.0.113.9","bootstrap_port":null,)"
                              R"("bootstrap_room":1})";
  for (const auto* server : {fleet.prefill.get(), fleet.decode.get()}) {
    auto answer = fleet.fetch(*server, "POST", "/generate", other_host);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("203.0.113.9:80"));
    answer = fleet.fetch(*server, "POST", "/generate", no_port);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("bootstrap_port"));
  }
  EXPECT_EQ(fleet.metric(*fleet.decode, "kvferry_pool_pages_taken_total"), 0);
}

// Port 1 of the loopback refuses at once: past the check the room fails for that reason.
TEST(SglangRoutes, ARegistryAtAStarredPortPassesTheCheck) {
  ServeOptions starred = sglang_options();
  starred.library.bootstrap_allow = {"*:1"};
  Fleet fleet(starred);
  ASSERT_TRUE(fleet.paired);
  for (const char* port : {"1", "null"}) {
    const auto answer =
        fleet.fetch(*fleet.decode, "POST", "/generate",
                    "{" + sglang_fields(9) + R"(,"bootstrap_host":"127.0.0.2","bootstrap_port":)" +
                        port + R"(,"bootstrap_room":1})");
    EXPECT_NE(answer.status, 400) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("127.0.0.2:1"));
  }
}

// SGLang's router waits for both servers and tells neither what the other one said.
TEST(SglangRoutes, WhatOneServerRefusesDoesNotWaitForItsDeadlineOnTheOther) {
  for (const bool decode_refuses : {true, false}) {
    Fleet fleet(sglang_options());
    ASSERT_TRUE(fleet.paired);
    (decode_refuses ? fleet.decode : fleet.prefill)->request_drain();
    const auto answer =
        fleet.ask_both("/generate", fleet.with_sglang_room(sglang_fields(90), 5)).get();
    EXPECT_EQ((decode_refuses ? answer.decode : answer.prefill).status, 503);
    const auto& told = decode_refuses ? answer.prefill : answer.decode;
    EXPECT_GE(told.status, 400) << told.body;
    EXPECT_THAT(told.body, HasSubstr("draining"));
  }
}

TEST(SglangRoutes, InformationRoutesSayWhatTheServerIs) {
  Fleet fleet(sglang_options());
  const std::vector<std::pair<const Server*, std::string>> modes = {
      {fleet.prefill.get(), "prefill"}, {fleet.decode.get(), "decode"}, {fleet.both.get(), "null"}};
  for (const auto& [server, mode] : modes) {
    for (const char* path :
         {"/server_info", "/get_server_info", "/model_info", "/get_model_info"}) {
      const auto answer = fleet.fetch(*server, "GET", path);
      ASSERT_EQ(answer.status, 200) << path;
      const auto info = json::parse(answer.body);
      EXPECT_EQ(std::string(info.at("disaggregation_mode").as_string()), mode) << path;
      EXPECT_EQ(info.at("served_model_name"), "synthetic") << path;
    }
    EXPECT_EQ(fleet.fetch(*server, "GET", "/generate").status, 405);
  }
}

}  // namespace
}  // namespace kvferry::serve
