#include "serve/server.h"

#include <gmock/gmock.h>

#include "server_fleet.h"

namespace kvferry::serve {
namespace {

using testing::HasSubstr;

ServeOptions options(std::uint32_t prefill_delay_ms = 0, std::uint32_t step_delay_ms = 0) {
  ServeOptions options;
  options.engine = EngineKind::kSynthetic;
  options.synthetic.prefill_delay_ms = prefill_delay_ms;
  options.synthetic.step_delay_ms = step_delay_ms;
  options.synthetic.max_sequences = 8;
  options.pool_pages = 64;
  options.drain_timeout_ms = 5'000;
  return options;
}

std::string fields(std::size_t bytes, const std::string& more = "") {
  std::string text;
  while (text.size() < bytes) {
    text += "day " + std::to_string(text.size()) + " ";
  }
  text.resize(bytes);
  return R"("prompt":")" + text + R"(","temperature":0,"max_tokens":50)" + more;
}

TEST(Servers, SplitServingAnswersAsOneProcess) {
  Fleet fleet(options());
  ASSERT_TRUE(fleet.paired) << fleet.fetch(*fleet.decode, "GET", "/v1/kvferry/pairs").body;
  const std::vector<std::size_t> lengths{1, 63, 64, 65, 128, 129, 300, 700, 1500, 40, 256, 555};
  std::vector<std::future<Fleet::Answers>> answers;
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    answers.push_back(fleet.split(fields(lengths[index]), index));
  }
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    const auto answer = answers[index].get();
    ASSERT_EQ(answer.prefill.status, 200) << answer.prefill.body;
    ASSERT_EQ(answer.decode.status, 200) << answer.decode.body;
    EXPECT_EQ(choice(answer.decode), choice(fleet.alone(fields(lengths[index])))) << lengths[index];
  }
  EXPECT_TRUE(fleet.settles());
  EXPECT_EQ(fleet.metric(*fleet.decode, "kvferry_pool_pages_taken_total"),
            fleet.metric(*fleet.decode, "kvferry_pool_pages_given_back_total"));
  EXPECT_EQ(fleet.metric(*fleet.prefill, "kvferry_pool_pages_taken_total"),
            fleet.metric(*fleet.prefill, "kvferry_pool_pages_given_back_total"));
  EXPECT_EQ(fleet.metric(*fleet.decode, "kvferry_pool_double_returns_total"), 0);
  EXPECT_EQ(fleet.metric(*fleet.prefill, "kvferry_pool_double_returns_total"), 0);
  EXPECT_EQ(fleet.fetch(*fleet.decode, "GET", "/readyz").status, 200);
}

TEST(Servers, PagesTravelWhileThePromptIsComputed) {
  Fleet fleet(options(20));
  const auto answer = fleet.split(fields(1'000), 5).get();
  ASSERT_EQ(answer.prefill.status, 200) << answer.prefill.body;
  const auto stats = boost::json::parse(answer.prefill.body).at("stats");
  EXPECT_TRUE(stats.at("first_page_before_prefill_end").as_bool()) << answer.prefill.body;
}

TEST(Servers, AbortedRequestsGiveTheirPagesBack) {
  Fleet fleet(options(100));
  for (std::uint64_t room = 0; room < 6; ++room) {
    const std::string body = fleet.with_room(fields(1'000), room);
    const double computed = fleet.metric(*fleet.prefill, "kvferry_prompt_tokens_total");
    const double taken = fleet.metric(*fleet.decode, "kvferry_pool_pages_taken_total");
    net::HttpCallOptions call;
    call.address = fleet.decode->address();
    net::HttpRequest request;
    request.method = "POST";
    request.target = "/v1/completions";
    request.body = body;
    auto decode = fleet.client->call(call, request, {});
    auto prefill = std::async(std::launch::async, [&] {
      return fleet.fetch(*fleet.prefill, "POST", "/v1/completions", body);
    });
    // In mid-transfer, a little later each time.
    ASSERT_TRUE(fleet.eventually([&] {
      return fleet.metric(*fleet.decode, "kvferry_pool_pages_taken_total") > taken &&
             fleet.metric(*fleet.prefill, "kvferry_prompt_tokens_total") >
                 computed + 60.0 * static_cast<double>(room);
    }));
    decode->cancel();
    const auto answer = prefill.get();
    EXPECT_NE(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("left decode")) << room;
  }
  EXPECT_TRUE(fleet.settles());
  const auto answer = fleet.split(fields(300), 1).get();
  EXPECT_EQ(choice(answer.decode), choice(fleet.alone(fields(300))));
}

TEST(Servers, UnknownPrefillFailsTheRequest) {
  ServeOptions quick = options();
  quick.library.bootstrap_timeout_ms = 1'000;
  Fleet fleet(quick);
  std::string body = fleet.with_room(fields(10), 1);
  body.replace(body.find("\"p0\""), 4, "\"nobody\"");
  const auto answer = fleet.fetch(*fleet.decode, "POST", "/v1/completions", body);
  EXPECT_GE(answer.status, 500) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr(R"("error":)"));
  EXPECT_TRUE(fleet.settles());
}

TEST(Servers, DrainFinishesWhatRuns) {
  Fleet fleet(options(0, 10));
  auto running = std::async(std::launch::async,
                            [&] { return fleet.alone(fields(100, R"(,"ignore_eos":true)")); });
  ASSERT_TRUE(
      fleet.eventually([&] { return fleet.metric(*fleet.both, "kvferry_requests_active") >= 1; }));
  fleet.both->request_drain();
  const auto refused = fleet.alone(fields(10));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("draining"));
  EXPECT_EQ(fleet.fetch(*fleet.both, "GET", "/readyz").status, 503);
  EXPECT_TRUE(fleet.both->wait());
  fleet.both->stop();
  const auto answer = running.get();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, HasSubstr(R"("completion_tokens":50)"));
}

TEST(Servers, RefusesBadOptions) {
  ServeOptions bad = options();
  bad.synthetic.prefill_chunk_tokens = 100;
  auto server = start_server(bad);
  ASSERT_FALSE(server);
  EXPECT_THAT(server.error().what, HasSubstr("multiple of the page size"));
  ServeOptions no_pages = options();
  no_pages.role = ServeRole::kDecode;
  no_pages.pool_pages = 0;
  EXPECT_FALSE(start_server(no_pages));
}

}  // namespace
}  // namespace kvferry::serve
