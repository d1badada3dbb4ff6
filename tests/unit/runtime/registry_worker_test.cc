#include "runtime/registry_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "kvferry/bootstrap_server.h"
#include "registry_client.h"
#include "runtime/mailbox.h"
#include "support/await.h"
#include "temp_file.h"

namespace kvferry::runtime {
namespace {

using testing::HasSubstr;

class RegistryWorkerTest : public testing::Test {
 protected:
  static BootstrapServerOptions options_with(const std::string& token_file) {
    BootstrapServerOptions options;
    options.cluster_token_file = token_file;
    return options;
  }

  const test::TempFile token_{"a-token-of-this-cluster\n"};
  const std::unique_ptr<BootstrapServer> server_ =
      std::move(*BootstrapServer::start(options_with(token_.path())));
  const std::unique_ptr<ClusterTokens> tokens_ = std::move(*ClusterTokens::load(token_.path()));
  const std::unique_ptr<net::HttpClient> client_ = net::HttpClient::start();
  KeyDirectory keys_{std::chrono::seconds(3)};
  RegistryCounters counters_;
};

TEST_F(RegistryWorkerTest, EveryQueryIsAnsweredOnceThoughTheThreadFails) {
  const auto mailbox = std::move(*Mailbox::make(100));
  RegistryWorkerConfig config;
  config.address = server_->address();
  config.self = test::prefill_row("decode:1", 77);
  config.total_timeout_ms = 60'000;
  RegistryWorker worker(config, *client_, *tokens_, keys_, counters_,
                        [](const std::string&, std::vector<core::PeerRow>) {
                          throw std::runtime_error("of this test");
                        });
  ASSERT_TRUE(worker.start());

  std::multiset<std::uint64_t> answered;
  std::vector<core::Event> events;
  const auto collect = [&] {
    mailbox->drain(events);
    for (const core::Event& event : events) {
      const auto& answer = std::get<core::PrefillResolved>(event);
      answered.insert(answer.receiver.value());
      ASSERT_FALSE(answer.rows);
      EXPECT_EQ(answer.rows.error().code, FailureCode::kBootstrapFailed);
      EXPECT_THAT(answer.rows.error().what, HasSubstr("of this test"));
    }
  };
  const auto ask = [&](std::uint64_t receiver) {
    return worker.add_query({core::ReceiverId(receiver), config.address, "nobody", 0},
                            [&mailbox, receiver](Result<std::vector<core::PeerRow>> rows) {
                              mailbox->push_reserved(core::PrefillResolved{
                                  core::ReceiverId(receiver), std::move(rows)});
                            });
  };
  // Nobody serves this instance: both wait until the thread fails.
  ASSERT_TRUE(ask(1));
  ASSERT_TRUE(ask(2));
  worker.want_pairs();
  EXPECT_TRUE(test::await([&] {
    collect();
    return answered.size() >= 2;
  }));
  ASSERT_TRUE(ask(3));
  collect();
  EXPECT_EQ(answered, (std::multiset<std::uint64_t>{1, 2, 3}));
  EXPECT_TRUE(worker.registration().refused);
}

TEST_F(RegistryWorkerTest, FreshRowsAnswerAtOnceUntilAPeerIsLost) {
  RegistryWorkerConfig config;
  config.address = server_->address();
  config.self = test::prefill_row("prefill:1", 77);
  RegistryWorker worker(config, *client_, *tokens_, keys_, counters_,
                        [](const std::string&, std::vector<core::PeerRow>) {});
  ASSERT_TRUE(worker.start());

  struct Told {
    std::mutex mutex;
    std::thread::id by;
    std::size_t answers = 0;
  };
  const auto told = std::make_shared<Told>();
  // Returns whether the answer came within the call, on this thread.
  const auto is_told_at_once = [&] {
    const std::size_t before = (std::lock_guard(told->mutex), told->answers);
    EXPECT_TRUE(worker.add_query({core::ReceiverId(1), config.address, config.self.instance, 0},
                                 [told](const Result<std::vector<core::PeerRow>>& rows) {
                                   EXPECT_TRUE(rows);
                                   const std::lock_guard lock(told->mutex);
                                   told->by = std::this_thread::get_id();
                                   ++told->answers;
                                 }));
    EXPECT_TRUE(test::await([&] {
      const std::lock_guard lock(told->mutex);
      return told->answers == before + 1;
    }));
    const std::lock_guard lock(told->mutex);
    return told->by == std::this_thread::get_id();
  };
  EXPECT_FALSE(is_told_at_once()) << "nobody has looked yet";
  // A slow machine may take longer between two calls than rows are fresh.
  EXPECT_TRUE(test::await([&] { return is_told_at_once(); }));
  worker.invalidate("another:1");
  EXPECT_FALSE(is_told_at_once()) << "what was said before the loss answers no more";
}

}  // namespace
}  // namespace kvferry::runtime
