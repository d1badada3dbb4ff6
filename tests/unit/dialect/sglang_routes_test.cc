// SGLang's bootstrap routes: codes, keys and texts as 0.5.23's own server gives them.
#include "dialect/sglang/sglang_routes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <set>

namespace kvferry::sglang {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kTextType = "text/plain; charset=utf-8";
constexpr std::string_view kJsonType = "application/json; charset=utf-8";

boost::json::object rank_body(int tp_size = 2, int tp_rank = 0) {
  return {{"attn_tp_size", tp_size},
          {"attn_tp_rank", tp_rank},
          {"attn_cp_size", 1},
          {"attn_cp_rank", 0},
          {"attn_dp_size", 1},
          {"attn_dp_rank", 0},
          {"pp_size", 1},
          {"pp_rank", 0},
          {"system_dp_size", 1},
          {"system_dp_rank", 0},
          {"rank_ip", "10.0.0.1"},
          {"rank_port", 41'000 + tp_rank},
          {"page_size", 16},
          {"kv_cache_dtype", "auto"}};
}

class SglangRoutesTest : public ::testing::Test {
 protected:
  net::HttpResponse ask(std::string method, std::string target, std::string body = {}) {
    net::HttpRequest request;
    request.method = std::move(method);
    request.target = std::move(target);
    request.body = std::move(body);
    request.remote = "10.0.0.9:5";
    const auto response = routes_.answer(request, now_);
    EXPECT_TRUE(response) << request.target;
    return response.value_or(net::HttpResponse{});
  }
  net::HttpResponse put(const boost::json::object& body) {
    return ask("PUT", "/route", boost::json::serialize(body));
  }
  net::HttpResponse get(std::string_view dp, std::string_view cp, std::string_view tp,
                        std::string_view pp) {
    return ask("GET", fmt::format("/route?prefill_dp_rank={}&prefill_cp_rank={}&target_tp_rank={}"
                                  "&target_pp_rank={}",
                                  dp, cp, tp, pp));
  }
  net::HttpResponse topology() { return get("-1", "-1", "-1", "-1"); }
  static void expect(const net::HttpResponse& response, int status, std::string_view body,
                     std::string_view type = kTextType) {
    EXPECT_EQ(response.status, status) << response.body;
    EXPECT_EQ(response.body, body);
    EXPECT_EQ(response.headers.get("Content-Type"), type);
  }

  SglangRoutes routes_;
  Instant now_{std::chrono::seconds(1'000)};
};

TEST_F(SglangRoutesTest, AnswersAsTheTableSays) {
  const std::string room = R"({"bootstrap_room": 7, "dp_rank": 1})";
  expect(ask("GET", "/health"), 200, "OK");
  EXPECT_EQ(ask("HEAD", "/health").status, 200);
  EXPECT_EQ(ask("POST", "/health").status, 405);
  expect(topology(), 503, "Prefill server not fully registered yet (0 workers registered).");
  expect(put(rank_body(2, 0)), 200, "OK");
  expect(topology(), 503, "Prefill server not fully registered yet (1 workers registered).");
  expect(get("0", "0", "0", "0"), 503,
         "Prefill server not fully registered yet (1 workers registered).");
  expect(put(rank_body(2, 1)), 200, "OK");
  EXPECT_EQ(topology().status, 200);
  expect(get("0", "0", "1", "0"), 200, R"({"rank_ip":"10.0.0.1","rank_port":41001})", kJsonType);
  expect(get("0", "0", "2", "0"), 404,
         "Bootstrap info not found for dp_rank=0 cp_rank=0 tp_rank=2 pp_rank=0");
  expect(get("-1", "0", "0", "0"), 404,
         "Bootstrap info not found for dp_rank=-1 cp_rank=0 tp_rank=0 pp_rank=0");
  expect(get("", "0", "0", "0"), 400, "Missing inputs for bootstrap server.");
  expect(ask("GET", "/route"), 400, "Missing inputs for bootstrap server.");
  EXPECT_EQ(get("x", "0", "0", "0").status, 500);
  EXPECT_EQ(get("0", "0", "0", "1.5").status, 500);
  expect(ask("POST", "/route"), 405, "Method not allowed", kJsonType);
  expect(ask("HEAD", "/route"), 405, "Method not allowed", kJsonType);
  expect(ask("DELETE", "/route"), 405, "Method not allowed", kJsonType);
  expect(ask("POST", "/register_dp_rank", room), 200, "OK");
  EXPECT_EQ(ask("GET", "/register_dp_rank").status, 405);
  expect(ask("POST", "/query_dp_ranks", R"({"bootstrap_rooms": [7, 8]})"), 200, R"({"7":1})",
         kJsonType);
  EXPECT_EQ(ask("PUT", "/query_dp_ranks").status, 405);
}

TEST_F(SglangRoutesTest, LeavesOtherPathsToItsServer) {
  for (const std::string target :
       {"/", "/metrics", "/v1/ranks", "/routes", "/route/", "/health/x"}) {
    net::HttpRequest request;
    request.target = target;
    EXPECT_FALSE(routes_.answer(request, now_)) << target;
  }
}

// Decode makes a record of all keys: one more and it can't read the answer at all.
TEST_F(SglangRoutesTest, TheTopologyHasTheKeysOf0523AndNoOther) {
  boost::json::object body = rank_body(1);
  body["prefill_http_port"] = 30'000;
  put(body);
  const boost::json::object plain = boost::json::parse(topology().body).as_object();
  std::set<std::string> keys;
  for (const auto& member : plain) {
    keys.insert(std::string(member.key()));
  }
  std::set<std::string> expected = {"attn_tp_size",
                                    "attn_cp_size",
                                    "dp_size",
                                    "pp_size",
                                    "page_size",
                                    "kv_cache_dtype",
                                    "follow_bootstrap_room",
                                    "enable_dsa_cache_layer_split",
                                    "prefill_http_port",
                                    "decode_allocation_policy",
                                    "target_tp_rank",
                                    "target_tp_ranks",
                                    "target_cp_ranks",
                                    "target_pp_ranks",
                                    "required_dst_info_num",
                                    "required_prefill_response_num",
                                    "enable_kv_cache_sharding"};
  EXPECT_EQ(keys, expected);
  EXPECT_EQ(plain.at("attn_tp_size"), 1);
  EXPECT_EQ(plain.at("page_size"), 16);
  EXPECT_EQ(plain.at("kv_cache_dtype"), "auto");
  EXPECT_EQ(plain.at("follow_bootstrap_room"), true);
  EXPECT_EQ(plain.at("enable_kv_cache_sharding"), false);
  EXPECT_EQ(plain.at("prefill_http_port"), 30'000);
  EXPECT_EQ(plain.at("decode_allocation_policy"), "early");
  EXPECT_TRUE(plain.at("target_tp_ranks").is_null());
}

TEST_F(SglangRoutesTest, LayoutsAreShownWhenThereAreAny) {
  boost::json::object body = rank_body(1);
  body["kv_layout"] = "hnd";
  body["dsv41_spec_layout"] = boost::json::parse(R"({"b": 1, "a": {"y": 2, "x": [1]}})");
  put(body);
  const boost::json::object shown = boost::json::parse(topology().body).as_object();
  EXPECT_EQ(shown.at("kv_layout"), "hnd");
  EXPECT_EQ(shown.at("dsv41_spec_layout"),
            boost::json::parse(R"({"a": {"x": [1], "y": 2}, "b": 1})"));
}

TEST_F(SglangRoutesTest, RefusesWhatRanksMustAgreeOn) {
  boost::json::object first = rank_body(2, 0);
  first["dsv41_spec_layout"] = boost::json::parse(R"({"a": 1, "b": 2})");
  expect(put(first), 200, "OK");
  boost::json::object second = rank_body(2, 1);
  expect(put(second), 400, "DeepSeek-V4.1 DSpark PD layout differs across prefill ranks");
  second["dsv41_spec_layout"] = boost::json::parse(R"({"b": 2, "a": 1})");  // another order
  second["decode_allocation_policy"] = "prefill_complete";
  expect(put(second), 400, "Inconsistent prefill allocation policies");
  EXPECT_EQ(topology().status, 503);
  second["decode_allocation_policy"] = "early";
  expect(put(second), 200, "OK");
  EXPECT_EQ(topology().status, 200);
}

TEST_F(SglangRoutesTest, TheFirstRowsSizesStay) {
  put(rank_body(2, 0));
  boost::json::object other = rank_body(2, 1);
  other["page_size"] = 64;
  other["kv_cache_dtype"] = "fp8";
  other["load_balance_method"] = "round_robin";
  expect(put(other), 200, "OK");
  const boost::json::object shown = boost::json::parse(topology().body).as_object();
  EXPECT_EQ(shown.at("page_size"), 16);
  EXPECT_EQ(shown.at("kv_cache_dtype"), "auto");
  EXPECT_EQ(shown.at("follow_bootstrap_room"), true);
  expect(put(rank_body(8, 5)), 200, "OK");  // no place in a group of two
  expect(get("0", "0", "5", "0"), 404,
         "Bootstrap info not found for dp_rank=0 cp_rank=0 tp_rank=5 pp_rank=0");
}

TEST_F(SglangRoutesTest, ARankThatRegistersTwiceCountsOnce) {
  put(rank_body(2, 0));
  boost::json::object moved = rank_body(2, 0);
  moved["rank_port"] = 42'000;
  expect(put(moved), 200, "OK");
  expect(topology(), 503, "Prefill server not fully registered yet (1 workers registered).");
  put(rank_body(2, 1));
  expect(get("0", "0", "0", "0"), 200, R"({"rank_ip":"10.0.0.1","rank_port":42000})", kJsonType);
}

TEST_F(SglangRoutesTest, TellsTheTwoKindsOfDataParallelismApart) {
  boost::json::object attention = rank_body(1);
  attention["attn_dp_size"] = 2;
  for (const int rank : {0, 1}) {
    attention["attn_dp_rank"] = rank;
    attention["rank_port"] = 100 + rank;
    put(attention);
  }
  EXPECT_EQ(boost::json::parse(topology().body).at("dp_size"), 2);
  EXPECT_EQ(get("1", "0", "0", "0").body, R"({"rank_ip":"10.0.0.1","rank_port":101})");

  SglangRegistry system;
  RankRow row;
  row.tp = row.cp = row.dp = row.pp = {1, 0};
  row.system_dp = {4, 3};
  EXPECT_EQ(system.put(row), SglangRegistry::Put::kStored);
  EXPECT_EQ(system.topology()->dp_size, 4U);
  EXPECT_NE(system.find({3, 0, 0, 0}), nullptr);
  EXPECT_FALSE(system.is_ready());
}

// Where Python converts, numbers may come as texts; where it would raise, the answer is 500.
TEST_F(SglangRoutesTest, ReadsBodiesAsPythonDoes) {
  boost::json::object good = rank_body(1);
  good["rank_port"] = "41000";
  good["page_size"] = "16";
  good["kv_cache_dtype"] = nullptr;
  good["prefill_http_port"] = nullptr;
  good["enable_dsa_cache_layer_split"] = 1;
  good["something_new"] = "is ignored";
  expect(put(good), 200, "OK");
  EXPECT_EQ(boost::json::parse(topology().body).at("enable_dsa_cache_layer_split"), true);
  EXPECT_TRUE(boost::json::parse(topology().body).at("kv_cache_dtype").is_null());

  for (const std::string required :
       {"attn_tp_size", "attn_tp_rank", "attn_cp_size", "attn_cp_rank", "attn_dp_size",
        "attn_dp_rank", "pp_size", "pp_rank", "system_dp_size", "system_dp_rank", "rank_ip",
        "rank_port", "page_size", "kv_cache_dtype"}) {
    boost::json::object body = rank_body(1);
    body.erase(required);
    const net::HttpResponse response = put(body);
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(response.body, required + " is missing");
  }
  const struct {
    std::string key;
    boost::json::value value;
    int status;
  } cases[] = {
      {"page_size", nullptr, 500}, {"page_size", "sixteen", 500},  {"page_size", -1, 500},
      {"rank_port", 70'000, 500},  {"rank_port", "x", 500},        {"rank_ip", 5, 500},
      {"rank_ip", "a\nb", 500},    {"attn_tp_size", nullptr, 500}, {"attn_tp_size", "many", 500},
      {"attn_tp_size", 0, 400},    {"pp_size", 70'000, 400},       {"prefill_http_port", "x", 500}};
  for (const auto& each : cases) {
    boost::json::object body = rank_body(1);
    body[each.key] = each.value;
    const net::HttpResponse response = put(body);
    EXPECT_EQ(response.status, each.status) << each.key << ": " << response.body;
    EXPECT_FALSE(response.body.empty());
  }
  for (const std::string body : {"", "{", "[]", "null", "\"x\"", "{\"a\":", "\xFF"}) {
    EXPECT_EQ(ask("PUT", "/route", body).status, 500) << body;
    EXPECT_EQ(ask("POST", "/register_dp_rank", body).status, 500) << body;
    EXPECT_EQ(ask("POST", "/query_dp_ranks", body).status, 500) << body;
  }
  EXPECT_EQ(ask("PUT", "/route", std::string(10'000, '[')).status, 500);
}

TEST_F(SglangRoutesTest, RoomsMayBeTextsAndAreShownAsTexts) {
  EXPECT_EQ(ask("POST", "/register_dp_rank", R"({"bootstrap_room": "7", "dp_rank": "1"})").status,
            200);
  EXPECT_EQ(
      ask("POST", "/register_dp_rank", R"({"bootstrap_room": 9223372036854775807, "dp_rank": 0})")
          .status,
      200);
  EXPECT_EQ(
      ask("POST", "/query_dp_ranks", R"({"bootstrap_rooms": ["7", 9223372036854775807]})").body,
      R"({"7":1,"9223372036854775807":0})");
  EXPECT_EQ(ask("POST", "/query_dp_ranks", R"({"bootstrap_rooms": []})").body, "{}");
  for (const std::string bad :
       {R"({"bootstrap_room": null, "dp_rank": 0})", R"({"bootstrap_room": 1})",
        R"({"bootstrap_room": "x", "dp_rank": 0})"}) {
    EXPECT_EQ(ask("POST", "/register_dp_rank", bad).status, 500) << bad;
  }
  EXPECT_EQ(ask("POST", "/query_dp_ranks", R"({"bootstrap_rooms": 7})").status, 500);
  EXPECT_EQ(ask("POST", "/query_dp_ranks", R"({"bootstrap_rooms": [{}]})").status, 500);
}

TEST_F(SglangRoutesTest, ARoomIsForgottenAfterTwoLifetimesAtMost) {
  ask("POST", "/register_dp_rank", R"({"bootstrap_room": 7, "dp_rank": 1})");
  const auto known = [&] {
    return ask("POST", "/query_dp_ranks", R"({"bootstrap_rooms": [7]})").body != "{}";
  };
  now_ = now_ + std::chrono::seconds(119);
  EXPECT_TRUE(known());
  now_ = now_ + std::chrono::seconds(2);
  EXPECT_TRUE(known());
  now_ = now_ + std::chrono::seconds(120);
  EXPECT_FALSE(known());
  ask("POST", "/register_dp_rank", R"({"bootstrap_room": 7, "dp_rank": 1})");
  now_ = now_ + std::chrono::seconds(240);
  EXPECT_FALSE(known()) << "nobody asked meanwhile";
}

TEST(SglangRegistry, HoldsItsLimits) {
  RegistryLimits limits;
  limits.max_rooms = 2;
  limits.max_ranks = 4;
  SglangRegistry registry(limits);
  const Instant now{std::chrono::seconds(1)};
  EXPECT_TRUE(registry.put_room(1, 0, now));
  EXPECT_TRUE(registry.put_room(2, 0, now));
  EXPECT_FALSE(registry.put_room(3, 0, now));
  EXPECT_TRUE(registry.put_room(2, 1, now));
  EXPECT_EQ(registry.dp_rank_of(2, now), 1);
  EXPECT_EQ(registry.dp_rank_of(3, now), std::nullopt);
  RankRow row;
  row.cp = row.dp = row.pp = row.system_dp = {1, 0};
  row.tp = {5, 0};
  EXPECT_EQ(registry.put(row), SglangRegistry::Put::kImpossible);
  EXPECT_FALSE(registry.topology());
  row.tp = {4, 0};
  EXPECT_EQ(registry.put(row), SglangRegistry::Put::kStored);
}

}  // namespace
}  // namespace kvferry::sglang
