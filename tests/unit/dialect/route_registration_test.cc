// A prefill rank at kvferry's own bootstrap routes, which are taken away and come back.
#include "dialect/sglang/route_registration.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/clock.h"
#include "dialect/sglang/sglang_json.h"
#include "dialect/sglang/sglang_routes.h"
#include "net/endpoint.h"
#include "net/http_server.h"

namespace kvferry::sglang {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);

// The routes on a port; counts what was asked.
class Registry {
 public:
  explicit Registry(std::uint16_t port = 0) {
    net::HttpServerConfig config;
    config.port = port;
    server_ = std::move(*net::HttpServer::start(
        config,
        [this](const net::HttpRequest& request, const std::shared_ptr<net::Responder>& responder) {
          {
            std::lock_guard lock(mutex_);
            ++(request.method == "PUT" ? puts_ : gets_);
          }
          changed_.notify_all();
          responder->respond(routes_.answer(request, monotonic_now()).value());
        }));
  }
  ~Registry() { server_->stop(); }
  std::string address() const { return server_->address(); }
  std::uint16_t port() const { return net::parse_endpoint(address())->port; }
  bool await_gets(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return gets_ >= count; });
  }
  bool await_puts(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return puts_ >= count; });
  }
  int puts() {
    std::lock_guard lock(mutex_);
    return puts_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int puts_ = 0;
  int gets_ = 0;
  SglangRoutes routes_;
  std::unique_ptr<net::HttpServer> server_;
};

RouteRegistrationConfig config_of(const std::string& registry, std::uint32_t rank = 0,
                                  std::uint32_t size = 1) {
  RouteRegistrationConfig config;
  config.registry = registry;
  config.row.tp = {size, rank};
  config.row.cp = config.row.dp = config.row.pp = config.row.system_dp = {1, 0};
  config.row.ip = "10.0.0.1";
  config.row.port = static_cast<std::uint16_t>(1'000 + rank);
  config.row.page_tokens = 16;
  config.row.kv_cache_dtype = "auto";
  config.row.http_port = 30'000;
  config.retry_min = config.retry_max = config.check_interval = milliseconds(10);
  return config;
}

TEST(RouteRegistrationTest, TheRowIsReadAsItWasWritten) {
  RankRow row = config_of("").row;
  row.kv_layout = "x";
  row.spec_layout = R"({"a":1})";
  row.follows_room = false;
  row.kv_cache_sharding = true;
  const auto read = parse_rank_row(rank_row_json(row));
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(rank_row_json(*read), rank_row_json(row));
  EXPECT_EQ(read->port, 1'000);
  EXPECT_EQ(read->kv_layout, "x");
  EXPECT_FALSE(read->follows_room);
}

TEST(RouteRegistrationTest, ARankSaysItOnce) {
  Registry registry;
  RouteRegistration rank(config_of(registry.address()));
  ASSERT_TRUE(rank.wait_registered(kPatience));
  ASSERT_TRUE(registry.await_gets(3));
  EXPECT_EQ(registry.puts(), 1);
}

// An incomplete registry does not tell whom it knows, and may count what it hears.
TEST(RouteRegistrationTest, ARankSaysItOnceWhileOthersAreMissing) {
  Registry registry;
  RouteRegistration first(config_of(registry.address(), 0, 2));
  ASSERT_TRUE(first.wait_registered(kPatience));
  ASSERT_TRUE(registry.await_gets(3));
  EXPECT_EQ(registry.puts(), 1);
  RouteRegistration second(config_of(registry.address(), 1, 2));
  ASSERT_TRUE(second.wait_registered(kPatience));
  EXPECT_EQ(registry.puts(), 2);
}

TEST(RouteRegistrationTest, ARegistryThatForgotIsToldAgain) {
  auto registry = std::make_unique<Registry>();
  const std::uint16_t port = registry->port();
  RouteRegistration first(config_of(registry->address(), 0, 2));
  RouteRegistration second(config_of(registry->address(), 1, 2));
  ASSERT_TRUE(first.wait_registered(kPatience));
  ASSERT_TRUE(second.wait_registered(kPatience));
  ASSERT_TRUE(registry->await_gets(20)) << "both have seen it complete";
  registry.reset();
  registry = std::make_unique<Registry>(port);
  EXPECT_TRUE(registry->await_puts(2));
}

TEST(RouteRegistrationTest, ARegistryThatComesLateIsWaitedFor) {
  std::uint16_t port = 0;
  { port = Registry().port(); }
  RouteRegistration rank(config_of(fmt::format("127.0.0.1:{}", port)));
  EXPECT_FALSE(rank.wait_registered(milliseconds(50)));
  Registry registry(port);
  EXPECT_TRUE(rank.wait_registered(kPatience));
}

// Whose place another process has taken does not fight for it.
TEST(RouteRegistrationTest, AnotherProcessWithThisRankIsLeftAlone) {
  Registry registry;
  RouteRegistration rank(config_of(registry.address()));
  ASSERT_TRUE(rank.wait_registered(kPatience));
  RouteRegistrationConfig other = config_of(registry.address());
  other.row.port = 7;
  RouteRegistration usurper(other);
  ASSERT_TRUE(usurper.wait_registered(kPatience));
  ASSERT_TRUE(registry.await_gets(10));
  EXPECT_EQ(registry.puts(), 2);
}

}  // namespace
}  // namespace kvferry::sglang
