#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "engine_tools.h"
#include "fake_responder.h"
#include "fake_transfer.h"
#include "serve/decode_scheduler.h"
#include "serve/http_api.h"
#include "serve/local_scheduler.h"
#include "serve/prefill_scheduler.h"
#include "serve/synthetic_engine.h"

namespace kvferry::serve {
namespace {

using testing::HasSubstr;
namespace json = boost::json;

SyntheticOptions engine_options(std::uint32_t prefill_delay_ms = 0,
                                std::uint32_t step_delay_ms = 0) {
  SyntheticOptions options;
  options.page_size_tokens = 16;
  options.prefill_chunk_tokens = 32;
  options.context_tokens = 512;
  options.max_sequences = 3;
  options.prefill_delay_ms = prefill_delay_ms;
  options.step_delay_ms = step_delay_ms;
  return options;
}

// One server without its HTTP listener.
struct Side {
  Side(ServeRole role, FakeWire* wire, SyntheticOptions options, std::uint32_t pages = 64,
       SchedulerLimits limits = {})
      : engine(must(make_synthetic_engine(options))),
        pool(must(PagePool::create(engine->info(), pages, 64))) {
    if (role == ServeRole::kBoth) {
      scheduler = std::make_unique<LocalScheduler>(*engine, rooms, metrics, limits);
    } else if (role == ServeRole::kPrefill) {
      transfer = std::make_unique<FakeTransfer>(*wire, Role::kPrefill, *pool);
      scheduler =
          std::make_unique<PrefillScheduler>(*engine, *pool, *transfer, rooms, metrics, limits);
    } else {
      transfer = std::make_unique<FakeTransfer>(*wire, Role::kDecode, *pool);
      scheduler =
          std::make_unique<DecodeScheduler>(*engine, *pool, *transfer, rooms, metrics, limits);
    }
    ApiContext context;
    context.role = role;
    context.engine = engine.get();
    context.scheduler = scheduler.get();
    context.pool = role == ServeRole::kBoth ? nullptr : pool.get();
    context.transfer = transfer.get();
    context.rooms = &rooms;
    context.metrics = &metrics;
    context.draining = &draining;
    api = std::make_unique<HttpApi>(context);
    scheduler->start();
  }
  ~Side() { scheduler->stop(); }

  std::shared_ptr<FakeResponder> post(const std::string& path, const std::string& body) {
    auto client = std::make_shared<FakeResponder>();
    net::HttpRequest request;
    request.method = "POST";
    request.target = path;
    request.body = body;
    api->handle(std::move(request), client);
    return client;
  }
  std::shared_ptr<FakeResponder> get(const std::string& path) {
    auto client = std::make_shared<FakeResponder>();
    net::HttpRequest request;
    request.target = path;
    api->handle(std::move(request), client);
    return client;
  }
  bool settles(int milliseconds = 5'000) {
    for (int waited = 0; waited < milliseconds; waited += 5) {
      if (scheduler->requests() == 0 && pool->free_pages() == pool->page_count() &&
          pool->free_aux() == 64) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  // Until pages are out: granted on decode, filled on prefill.
  bool is_under_way() {
    for (int waited = 0; waited < 10'000; waited += 2) {
      if (pool->free_pages() < pool->page_count()) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<FakeTransfer> transfer;
  RoomLog rooms;
  ServeMetrics metrics;
  std::atomic<bool> draining{false};
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<HttpApi> api;
};

std::string words(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    text += "word" + std::to_string(text.size()) + " ";
  }
  text.resize(bytes);
  return text;
}

std::string body(int room, const std::string& prompt, const std::string& more = "") {
  std::string fields = R"("prompt":")" + prompt + R"(","temperature":0)" + more;
  if (room >= 0) {
    fields += R"(,"bootstrap_host":"127.0.0.1","bootstrap_port":1,"bootstrap_room":)" +
              std::to_string(room) + R"(,"kvferry_binding":")" +
              Binding{7, static_cast<std::uint64_t>(room) + 1}.to_hex() + "\"";
  }
  return "{" + fields + "}";
}

std::string text_of(FakeResponder& client) {
  const auto value = json::parse(client.body());
  return std::string(value.at("choices").at(0).at("text").as_string());
}

// The text of a stream, and its finish reason after a "|".
std::string streamed_text(FakeResponder& client) {
  std::string text;
  std::string reason;
  const std::string all = client.body();
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = all.find("\n\n", at);
    const std::string event = all.substr(at + 6, end - at - 6);
    at = end + 2;
    if (event == "[DONE]") {
      continue;
    }
    const auto value = json::parse(event);
    for (const auto& choice : value.at("choices").as_array()) {
      text += choice.at("text").as_string();
      if (choice.at("finish_reason").is_string()) {
        reason = choice.at("finish_reason").as_string();
      }
    }
  }
  return text + "|" + reason;
}

struct Pair {
  explicit Pair(SyntheticOptions prefill_options = engine_options(),
                SyntheticOptions decode_options = engine_options(), std::uint32_t pages = 64,
                SchedulerLimits limits = {})
      : prefill(ServeRole::kPrefill, &wire, prefill_options, pages, limits),
        decode(ServeRole::kDecode, &wire, decode_options, pages, limits) {}

  FakeWire wire;
  Side prefill;
  Side decode;
};

TEST(Schedulers, SplitServingAnswersAsOneProcess) {
  Pair pair;
  Side both(ServeRole::kBoth, nullptr, engine_options());
  // 16 requests at once for 3 sequences and pages for about 4 prompts; lengths around page and
  // chunk borders.
  const std::vector<std::size_t> lengths{1,   15,  16,  17,  31,  32,  33, 64,
                                         100, 200, 255, 256, 257, 300, 16, 48};
  std::vector<std::shared_ptr<FakeResponder>> prefills;
  std::vector<std::shared_ptr<FakeResponder>> decodes;
  std::vector<std::shared_ptr<FakeResponder>> references;
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    const std::string prompt = words(lengths[index]);
    const std::string more = R"(,"max_tokens":40)";
    const int room = static_cast<int>(index);
    decodes.push_back(pair.decode.post("/v1/completions", body(room, prompt, more)));
    prefills.push_back(pair.prefill.post("/v1/completions", body(room, prompt, more)));
    references.push_back(both.post("/v1/completions", body(-1, prompt, more)));
  }
  for (std::size_t index = 0; index < lengths.size(); ++index) {
    ASSERT_TRUE(prefills[index]->wait() && decodes[index]->wait() && references[index]->wait());
    EXPECT_EQ(prefills[index]->status(), 200) << prefills[index]->body();
    ASSERT_EQ(decodes[index]->status(), 200) << decodes[index]->body();
    EXPECT_EQ(text_of(*decodes[index]), text_of(*references[index])) << lengths[index];
    EXPECT_EQ(json::parse(decodes[index]->body()).at("usage"),
              json::parse(references[index]->body()).at("usage"));
  }
  EXPECT_TRUE(pair.prefill.settles());
  EXPECT_TRUE(pair.decode.settles());
  EXPECT_EQ(pair.prefill.pool->double_returns() + pair.decode.pool->double_returns(), 0U);
}

TEST(Schedulers, SampledAnswersAgreeToo) {
  Pair pair;
  Side both(ServeRole::kBoth, nullptr, engine_options());
  const std::string more = R"(,"max_tokens":60,"seed":11,"top_p":0.9,"stop":["qz","eee"])";
  std::string fields = body(3, words(77), more);
  fields.replace(fields.find(R"("temperature":0)"), 15, R"("temperature":1.5)");
  std::string reference = body(-1, words(77), more);
  reference.replace(reference.find(R"("temperature":0)"), 15, R"("temperature":1.5)");
  auto prefill = pair.prefill.post("/v1/completions", fields);
  auto decode = pair.decode.post("/v1/completions", fields);
  auto alone = both.post("/v1/completions", reference);
  ASSERT_TRUE(prefill->wait() && decode->wait() && alone->wait());
  EXPECT_EQ(text_of(*decode), text_of(*alone));
}

TEST(Schedulers, StreamSaysTheSameAsTheWholeAnswer) {
  Pair pair;
  const std::string prompt = words(90);
  auto whole_prefill = pair.prefill.post("/v1/completions", body(1, prompt, R"(,"max_tokens":30)"));
  auto whole = pair.decode.post("/v1/completions", body(1, prompt, R"(,"max_tokens":30)"));
  const std::string more =
      R"(,"max_tokens":30,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true)";
  auto stream_prefill = pair.prefill.post("/v1/completions", body(2, prompt, more));
  auto stream = pair.decode.post("/v1/completions", body(2, prompt, more));
  ASSERT_TRUE(whole->wait() && stream->wait() && stream_prefill->wait() && whole_prefill->wait());
  const auto reference = json::parse(whole->body());
  EXPECT_EQ(streamed_text(*stream),
            text_of(*whole) + "|" +
                std::string(reference.at("choices").at(0).at("finish_reason").as_string()));
  EXPECT_THAT(stream->body(), testing::EndsWith("data: [DONE]\n\n"));
  EXPECT_THAT(stream->body(), HasSubstr(R"("usage":{"prompt_tokens":90)"));
  EXPECT_THAT(stream->body(), HasSubstr(R"("token_ids":[)"));
}

TEST(Schedulers, PrefillTellsWhatBecameOfTheRoom) {
  Pair pair(engine_options(5));
  auto decode = pair.decode.post("/v1/completions", body(9, words(200)));
  auto prefill = pair.prefill.post("/v1/completions", body(9, words(200)));
  ASSERT_TRUE(prefill->wait() && decode->wait());
  const auto answer = json::parse(prefill->body());
  EXPECT_EQ(answer.at("usage").at("prompt_tokens").to_number<int>(), 200);
  EXPECT_EQ(answer.at("room").to_number<int>(), 9);
  const auto& stats = answer.at("stats");
  EXPECT_EQ(stats.at("pages").to_number<int>(), 13);
  EXPECT_TRUE(stats.at("first_page_before_prefill_end").as_bool());
  EXPECT_GE(stats.at("prefill_ms").to_number<double>(), 30);
  auto room = pair.decode.get("/v1/kvferry/rooms/" + Binding{7, 10}.to_hex());
  EXPECT_EQ(room->status(), 200);
  EXPECT_EQ(json::parse(room->body()).at("outcome").as_string(), "success");
  EXPECT_EQ(pair.prefill.get("/v1/kvferry/rooms/" + Binding{7, 99}.to_hex())->status(), 404);
}

TEST(Schedulers, DecodeClientLeavesDuringTransfer) {
  Pair pair(engine_options(30));
  auto decode = pair.decode.post("/v1/completions", body(4, words(400)));
  auto prefill = pair.prefill.post("/v1/completions", body(4, words(400)));
  ASSERT_TRUE(pair.decode.is_under_way() && pair.prefill.is_under_way());
  decode->leave();
  ASSERT_TRUE(prefill->wait());
  EXPECT_EQ(prefill->status(), 499);
  EXPECT_THAT(prefill->body(), HasSubstr("the client left decode"));
  EXPECT_TRUE(pair.prefill.settles());
  EXPECT_TRUE(pair.decode.settles());
}

TEST(Schedulers, PrefillClientLeavesDuringTransfer) {
  Pair pair(engine_options(30));
  auto decode = pair.decode.post("/v1/completions", body(4, words(400)));
  auto prefill = pair.prefill.post("/v1/completions", body(4, words(400)));
  ASSERT_TRUE(pair.decode.is_under_way() && pair.prefill.is_under_way());
  prefill->leave();
  ASSERT_TRUE(decode->wait());
  EXPECT_EQ(decode->status(), 499);
  EXPECT_THAT(decode->body(), HasSubstr(R"("code":"aborted")"));
  EXPECT_TRUE(pair.prefill.settles());
  EXPECT_TRUE(pair.decode.settles());
}

TEST(Schedulers, ClientLeavesWhileDecoding) {
  Pair pair(engine_options(), engine_options(0, 10));
  const std::string more = R"(,"max_tokens":400,"stream":true,"ignore_eos":true)";
  auto decode = pair.decode.post("/v1/completions", body(4, words(40), more));
  auto prefill = pair.prefill.post("/v1/completions", body(4, words(40), more));
  ASSERT_TRUE(decode->wait_for_data());
  decode->leave();
  EXPECT_TRUE(pair.decode.settles());
  EXPECT_TRUE(prefill->wait());
}

TEST(Schedulers, RequestsWaitForPages) {
  SchedulerLimits limits;
  limits.queue_timeout_ms = 100;
  // 20 pages of 16 tokens: one prompt of 300 tokens at a time.
  Pair pair(engine_options(), engine_options(), 20, limits);
  auto stuck = pair.decode.post("/v1/completions", body(1, words(300)));  // no prefill comes
  auto second = pair.decode.post("/v1/completions", body(2, words(300)));
  ASSERT_TRUE(second->wait());
  EXPECT_EQ(second->status(), 503);
  EXPECT_THAT(second->body(), HasSubstr("no pages became free within 100 ms"));
  EXPECT_THAT(second->body(), HasSubstr("queue-full"));
  stuck->leave();
  EXPECT_TRUE(pair.decode.settles());
  auto too_long = pair.decode.post("/v1/completions", body(3, words(400)));
  EXPECT_EQ(too_long->status(), 400);
  EXPECT_THAT(too_long->body(), HasSubstr("needs 25 pages; this server's pool has 20"));
}

TEST(Schedulers, FullServerSaysSo) {
  SchedulerLimits limits;
  limits.max_requests = 2;
  Pair pair(engine_options(), engine_options(), 64, limits);
  auto one = pair.decode.post("/v1/completions", body(1, "a"));
  auto two = pair.decode.post("/v1/completions", body(2, "a"));
  auto three = pair.decode.post("/v1/completions", body(3, "a"));
  ASSERT_TRUE(three->wait());
  EXPECT_EQ(three->status(), 503);
  EXPECT_THAT(three->body(), HasSubstr("holds 2 requests, its limit"));
  pair.decode.scheduler->stop();
  ASSERT_TRUE(one->wait() && two->wait());
  EXPECT_EQ(one->status(), 503);
  EXPECT_THAT(one->body(), HasSubstr("shutting-down"));
  auto late = pair.decode.post("/v1/completions", body(4, "a"));
  EXPECT_EQ(late->status(), 503);
}

TEST(Schedulers, StopStringsEndAnAnswer) {
  Side both(ServeRole::kBoth, nullptr, engine_options());
  const std::string more = R"(,"max_tokens":200,"ignore_eos":true)";
  auto whole = both.post("/v1/completions", body(-1, words(30), more));
  ASSERT_TRUE(whole->wait());
  const std::string text = text_of(*whole);
  ASSERT_EQ(text.size(), 200U);
  const std::string stop = text.substr(100, 5);
  auto cut = both.post("/v1/completions", body(-1, words(30), more + R"(,"stop":")" + stop + "\""));
  ASSERT_TRUE(cut->wait());
  EXPECT_EQ(text_of(*cut), text.substr(0, text.find(stop)));
  EXPECT_THAT(cut->body(), HasSubstr(R"("finish_reason":"stop")"));
  EXPECT_THAT(whole->body(), HasSubstr(R"("finish_reason":"length")"));
}

TEST(HttpApi, ChecksFormBeforeWork) {
  FakeWire wire;
  Side decode(ServeRole::kDecode, &wire, engine_options());
  auto bare = decode.post("/v1/completions", body(-1, "x"));
  EXPECT_EQ(bare->status(), 400);
  EXPECT_THAT(bare->body(), HasSubstr("must come through the router"));
  Side both(ServeRole::kBoth, nullptr, engine_options());
  EXPECT_EQ(both.post("/v1/completions", body(1, "x"))->status(), 400);
  auto long_prompt = both.post("/v1/completions", body(-1, words(512)));
  EXPECT_EQ(long_prompt->status(), 400);
  EXPECT_THAT(long_prompt->body(), HasSubstr("the prompt has 512 tokens; the limit is 511"));
  EXPECT_THAT(long_prompt->body(), HasSubstr(R"("code":"context_length_exceeded")"));
  EXPECT_EQ(both.post("/v1/completions", R"({"prompt":[999999]})")->status(), 400);
}

TEST(HttpApi, AnswersAboutItself) {
  FakeWire wire;
  Side decode(ServeRole::kDecode, &wire, engine_options());
  EXPECT_EQ(decode.get("/livez")->status(), 200);
  EXPECT_EQ(decode.get("/readyz")->status(), 200);
  EXPECT_THAT(decode.get("/v1/models")->body(), HasSubstr(R"("id":"synthetic")"));
  EXPECT_THAT(decode.get("/v1/kvferry/pairs")->body(), HasSubstr(R"("ready":true)"));
  EXPECT_THAT(decode.get("/v1/kvferry/status")->body(), HasSubstr("rooms"));
  const std::string metrics = decode.get("/metrics")->body();
  EXPECT_THAT(metrics, HasSubstr("kvferry_quarantined_pages 0"));
  EXPECT_THAT(metrics, HasSubstr("kvferry_rooms_total{outcome=\"success\"} 3"));
  EXPECT_THAT(metrics, HasSubstr("kvferry_pool_pages_taken_total 0"));
  EXPECT_THAT(metrics, HasSubstr("# TYPE kvferry_ttft_seconds histogram"));
  EXPECT_EQ(decode.get("/nothing")->status(), 404);
  EXPECT_THAT(decode.get("/nothing")->body(),
              HasSubstr(R"({"error":{"message":"there is no /nothing)"));
  EXPECT_EQ(decode.get("/v1/completions")->status(), 405);
  EXPECT_EQ(decode.post("/health", "")->status(), 405);

  decode.transfer->checks = {{"threads", true, ""}, {"pages", false, "fence overdue"}};
  EXPECT_EQ(decode.get("/readyz")->status(), 503);
  EXPECT_THAT(decode.get("/health")->body(), HasSubstr("fence overdue"));
  decode.transfer->checks.clear();
  decode.draining = true;
  EXPECT_THAT(decode.get("/readyz")->body(), HasSubstr("draining"));
  auto refused = decode.post("/v1/completions", body(1, "x"));
  EXPECT_EQ(refused->status(), 503);
  EXPECT_THAT(refused->body(), HasSubstr(R"("code":"draining")"));
  EXPECT_EQ(decode.get("/livez")->status(), 200);
}

TEST(HttpApi, ChatHasItsShape) {
  Side both(ServeRole::kBoth, nullptr, engine_options());
  const std::string chat =
      R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":6,"seed":1)";
  auto whole = both.post("/v1/chat/completions", chat + "}");
  ASSERT_TRUE(whole->wait());
  const auto answer = json::parse(whole->body());
  EXPECT_EQ(answer.at("object").as_string(), "chat.completion");
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("role").as_string(), "assistant");
  auto stream = both.post("/v1/chat/completions", chat + R"(,"stream":true})");
  ASSERT_TRUE(stream->wait());
  EXPECT_THAT(stream->body(), HasSubstr(R"("delta":{"role":"assistant","content":)"));
  EXPECT_THAT(stream->body(), HasSubstr(R"("finish_reason":null)"));
  std::size_t roles = 0;
  for (std::size_t at = 0; (at = stream->body().find("\"role\"", at)) != std::string::npos; ++at) {
    ++roles;
  }
  EXPECT_EQ(roles, 1U);
}

}  // namespace
}  // namespace kvferry::serve
