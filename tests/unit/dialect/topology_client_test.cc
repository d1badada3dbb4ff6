// Rooms' questions to a registry with SGLang's routes, over HTTP on the loopback.
#include "dialect/sglang/topology_client.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "base/clock.h"
#include "decode_rig.h"
#include "dialect/sglang/sglang_json.h"
#include "dialect/sglang/sglang_routes.h"
#include "dialect/sglang/stock_prefill.h"
#include "net/http_server.h"

namespace kvferry::sglang {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(20);

// What stands behind: counts what it is told.
class Inner final : public runtime::PrefillResolver {
 public:
  Status start() override { return {}; }
  void resolve(const core::ResolvePrefill&) override { ADD_FAILURE() << "asked"; }
  Status keep_paired(const std::string&) override { return {}; }
  void refresh_keys() override { ++refreshed; }
  void invalidate(const std::string&) override { ++invalidated; }
  std::vector<std::string> readiness_problems() const override { return {"one"}; }
  const runtime::RegistryCounters& counters() const override { return counters_; }
  void begin_stop() override {}
  void stop() override { ++stopped; }

  int refreshed = 0;
  int invalidated = 0;
  int stopped = 0;

 private:
  runtime::RegistryCounters counters_;
};

class TopologyClientTest : public ::testing::Test {
 protected:
  TopologyClientTest() {
    server_ = std::move(*net::HttpServer::start(
        {},
        [this](const net::HttpRequest& request, const std::shared_ptr<net::Responder>& responder) {
          std::string body;
          {
            std::lock_guard lock(mutex_);
            asked_.push_back(request.method + " " + request.target);
            body = instead_;
          }
          changed_.notify_all();
          responder->respond(body.empty() ? routes_.answer(request, monotonic_now()).value()
                                          : net::json_response(200, body));
        }));
    config_.options.bootstrap_allow = {server_->address()};
    config_.options.http_total_timeout_ms = 400;
    config_.layout = DecodeRig::self({}).layout;
    config_.kv_cache_dtype = "auto";
    config_.threads = &threads_;
  }
  ~TopologyClientTest() override {
    client_.reset();
    server_->stop();
  }

  static RankRow row(std::uint32_t tp_size = 1, std::uint32_t tp_rank = 0) {
    RankRow out;
    out.tp = {tp_size, tp_rank};
    out.cp = out.dp = out.pp = out.system_dp = {1, 0};
    out.ip = "10.0.0.9";
    out.port = static_cast<std::uint16_t>(7'000 + tp_rank);
    out.page_tokens = 16;
    out.kv_cache_dtype = "auto";
    return out;
  }
  void put(const RankRow& rank) {
    net::HttpRequest request;
    request.method = "PUT";
    request.target = "/route";
    request.body = rank_row_json(rank);
    EXPECT_EQ(routes_.answer(request, monotonic_now())->status, 200);
  }

  void ask(std::uint64_t receiver, std::uint64_t room = 1, std::uint32_t dp_rank = 0,
           const std::string& address = {}) {
    if (client_ == nullptr) {
      auto inner = std::make_unique<Inner>();
      inner_ = inner.get();
      client_ = std::make_unique<TopologyClient>(
          config_, std::move(inner), [this](core::PrefillResolved answer) {
            {
              std::lock_guard lock(mutex_);
              answers_.emplace(answer.receiver.value(), std::move(answer.rows));
            }
            changed_.notify_all();
          });
    }
    client_->resolve({core::ReceiverId(receiver), address.empty() ? server_->address() : address,
                      "", dp_rank, RoomId(room)});
  }
  Result<std::vector<core::PeerRow>> answer(std::uint64_t receiver) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return answers_.contains(receiver); })) {
      return fail(FailureCode::kUnspecified, "no answer");
    }
    return answers_.at(receiver);
  }
  std::string failure(std::uint64_t receiver) {
    const auto rows = answer(receiver);
    return rows ? "found" : to_string(rows.error());
  }
  // Endpoints, as text.
  std::vector<std::string> endpoints(std::uint64_t receiver) {
    std::vector<std::string> out;
    const auto rows = answer(receiver);
    EXPECT_TRUE(rows) << rows.error().what;
    for (const core::PeerRow& each : rows.value_or(std::vector<core::PeerRow>{})) {
      EXPECT_TRUE(prefill_rank_of(each.address)) << each.address.public_key;
      out.push_back(each.address.endpoint);
    }
    return out;
  }
  bool await_asked(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return asked_.size() >= count; });
  }
  std::size_t asked() {
    std::lock_guard lock(mutex_);
    return asked_.size();
  }

  TopologyClientConfig config_;
  SglangRoutes routes_;
  std::string instead_;  // of the routes' answers
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> asked_;
  std::map<std::uint64_t, Result<std::vector<core::PeerRow>>> answers_;
  std::unique_ptr<net::HttpServer> server_;
  Inner* inner_ = nullptr;
  ThreadRoster threads_;
  std::unique_ptr<TopologyClient> client_;
};

TEST_F(TopologyClientTest, EveryRankOfTheMappingIsARowAndIsAskedForOnce) {
  put(row(2, 0));
  put(row(2, 1));
  ask(1);
  EXPECT_THAT(endpoints(1), ElementsAre("10.0.0.9:7000", "10.0.0.9:7001"));
  const auto rank = prefill_rank_of(answer(1)->back().address);
  ASSERT_TRUE(rank);
  EXPECT_EQ(rank->place.tp_rank, 1U);
  EXPECT_EQ(rank->shape.tp_size, 2U);
  EXPECT_EQ(rank->registry, server_->address());
  EXPECT_EQ(rank->page_tokens, 16U);
  ask(2);
  EXPECT_EQ(endpoints(2).size(), 2U);
  EXPECT_EQ(asked(), 3U) << "the topology and two ranks";
}

TEST_F(TopologyClientTest, AfterALostPeerItIsAskedAgain) {
  put(row());
  ask(1);
  endpoints(1);
  const std::size_t before = asked();
  client_->invalidate("10.0.0.8:1");
  ask(2);
  endpoints(2);
  EXPECT_EQ(asked(), before) << "a peer that it did not name";
  RankRow moved = row();
  moved.port = 7'777;
  put(moved);
  client_->invalidate("10.0.0.9:7000");
  ask(3);
  EXPECT_THAT(endpoints(3), ElementsAre("10.0.0.9:7777"));
  EXPECT_EQ(inner_->invalidated, 2);
}

TEST_F(TopologyClientTest, WhoIsNotAllowedIsNeverContacted) {
  config_.options.bootstrap_allow = {"10.9.9.9:1"};
  ask(1);
  EXPECT_THAT(failure(1), HasSubstr("neither in bootstrap_addresses nor in bootstrap_allow"));
  EXPECT_EQ(asked(), 0U);
}

TEST_F(TopologyClientTest, AServerThatIsNotCompleteIsAskedUntilItIs) {
  config_.options.http_total_timeout_ms = 60'000;
  put(row(2, 0));
  ask(1);
  ASSERT_TRUE(await_asked(2));
  put(row(2, 1));
  EXPECT_EQ(endpoints(1).size(), 2U);
}

TEST_F(TopologyClientTest, AServerThatStaysIncompleteFailsTheRoomWithItsOwnWords) {
  put(row(2, 0));
  ask(1);
  EXPECT_THAT(failure(1), HasSubstr("it answers 503: Prefill server not fully registered yet"));
}

TEST_F(TopologyClientTest, NobodyThereFailsTheRoom) {
  config_.options.bootstrap_allow = {"127.0.0.1:1"};
  ask(1, 1, 0, "127.0.0.1:1");
  EXPECT_THAT(failure(1), HasSubstr("registry 127.0.0.1:1"));
}

TEST_F(TopologyClientTest, WhatCanNotBeServedFailsAtOnce) {
  // Long enough that a test which waits for it fails by its own patience.
  config_.options.http_total_timeout_ms = 60'000;
  config_.kv_cache_dtype = "fp8_e5m2";
  put(row());
  ask(1);
  EXPECT_THAT(failure(1), HasSubstr("kv_cache_dtype: fp8_e5m2 here, auto at the peer"));
}

TEST_F(TopologyClientTest, SizesThatNoPairHasFailAtOnce) {
  config_.options.http_total_timeout_ms = 60'000;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    put(row(3, rank));
  }
  ask(1);
  EXPECT_THAT(failure(1), HasSubstr("4 KV heads on 3 TP ranks"));
}

TEST_F(TopologyClientTest, ARoomsReplicaFollowsFromItsNumber) {
  for (std::uint32_t dp = 0; dp < 2; ++dp) {
    RankRow replica = row();
    replica.dp = {2, dp};
    replica.port = static_cast<std::uint16_t>(8'000 + dp);
    put(replica);
  }
  ask(1, 6);
  ask(2, 7);
  ask(3, 6, 1);
  ask(4, 6, 2);
  EXPECT_THAT(endpoints(1), ElementsAre("10.0.0.9:8000"));
  EXPECT_THAT(endpoints(2), ElementsAre("10.0.0.9:8001"));
  EXPECT_THAT(endpoints(3), ElementsAre("10.0.0.9:8001")) << "the one that it names";
  EXPECT_THAT(failure(4), HasSubstr("dp rank 2 is named, prefill has 2"));
}

TEST_F(TopologyClientTest, WhereRoomsDoNotFollowTheServerNamesTheReplica) {
  for (std::uint32_t dp = 0; dp < 2; ++dp) {
    RankRow replica = row();
    replica.dp = {2, dp};
    replica.follows_room = false;
    replica.port = static_cast<std::uint16_t>(8'000 + dp);
    put(replica);
  }
  net::HttpRequest request;
  request.method = "POST";
  request.target = "/register_dp_rank";
  request.body = R"({"bootstrap_room": 6, "dp_rank": 1})";
  ASSERT_EQ(routes_.answer(request, monotonic_now())->status, 200);
  ask(1, 6);
  EXPECT_THAT(endpoints(1), ElementsAre("10.0.0.9:8001"));
  ask(2, 7);
  EXPECT_THAT(failure(2), HasSubstr("no dp rank has said that it has room 7"));
}

TEST_F(TopologyClientTest, NonsenseIsAnErrorWithWhatIsWrong) {
  instead_ = R"({"attn_tp_size": 1})";
  ask(1);
  EXPECT_THAT(failure(1), HasSubstr("attn_cp_size is missing"));
  {
    std::lock_guard lock(mutex_);
    instead_ = "[]";
  }
  ask(2);
  EXPECT_THAT(failure(2), HasSubstr("no JSON object"));
}

TEST_F(TopologyClientTest, AnAddressThatIsNoNumberIsNotDialled) {
  RankRow named = row();
  named.ip = "prefill.example";
  put(named);
  ask(1);
  EXPECT_THAT(failure(1), HasSubstr("'prefill.example' port 7000, expected a numeric address"));
}

TEST_F(TopologyClientTest, StoppingAnswersWhoWaits) {
  config_.options.http_total_timeout_ms = 600'000;
  ask(1);
  ASSERT_TRUE(await_asked(1));
  const auto threads = threads_.places();
  ASSERT_EQ(threads.size(), 1U);
  EXPECT_EQ(threads.front()->name(), "kvf-topology");
  EXPECT_FALSE(threads.front()->has_ended());
  client_->stop();
  EXPECT_TRUE(threads.front()->has_ended());
  EXPECT_EQ(threads.front()->cause(), "");
  EXPECT_THAT(failure(1), HasSubstr("the manager was stopped"));
  EXPECT_EQ(inner_->stopped, 1);
  ask(2);
  EXPECT_THAT(failure(2), HasSubstr("the manager was stopped"));
}

TEST_F(TopologyClientTest, WhatItDoesNotDoItselfGoesToTheOneBehind) {
  put(row());
  ask(1);
  endpoints(1);
  client_->refresh_keys();
  EXPECT_EQ(inner_->refreshed, 1);
  EXPECT_THAT(client_->readiness_problems(), ElementsAre("one"));
  EXPECT_FALSE(client_->keep_paired(server_->address()));
}

TEST(TopologyJson, KeysThatAreNotKnownAreLetPass) {
  Topology topology;
  topology.tp_size = 4;
  topology.cp_size = topology.dp_size = topology.pp_size = 1;
  topology.page_tokens = 64;
  topology.follows_room = false;
  std::string text = topology_json(topology);
  text.insert(1, R"("a_later_key": [1, {"x": null}], )");
  const auto parsed = parse_topology(text);
  ASSERT_TRUE(parsed) << parsed.error().what;
  EXPECT_EQ(parsed->tp_size, 4U);
  EXPECT_EQ(parsed->page_tokens, 64U);
  EXPECT_FALSE(parsed->follows_room);
  EXPECT_EQ(parsed->kv_cache_dtype, std::nullopt);
  EXPECT_EQ(rooms_json({1, 2}), R"({"bootstrap_rooms":[1,2]})");
  EXPECT_FALSE(parse_room_ranks(R"({"x": 1})"));
  EXPECT_FALSE(parse_room_ranks(R"({"1": null})"));
  EXPECT_EQ(parse_room_ranks(R"({"7": 3})")->front().dp_rank, 3);
}

}  // namespace
}  // namespace kvferry::sglang
