// Addresses that peers are told, and data paths that do not work.
#include <fmt/format.h>

#include <optional>

#include "data_plane/tcp/socket.h"
#include "pair_fixture.h"
#include "support/relay.h"

namespace kvferry {
namespace {

// A port that was free a moment ago.
std::uint16_t free_port() { return std::move(*data_plane::tcp::listen_on("127.0.0.1", 0)).port; }

class BehindNat : public test::PairTest {
 protected:
  BehindNat() {
    options_.transport = "tcp";
    start_prefill();
    options_.control_port = free_port();
    options_.data_port = free_port();
    control_.emplace("127.0.0.1", options_.control_port);
    data_.emplace("127.0.0.1", options_.data_port);
    options_.advertise_host = "127.0.0.1";
    options_.advertise_port = control_->port();
    options_.advertise_data_port = data_->port();
  }
  PairState pair_of_decode() {
    const std::vector<PairState> pairs = decode_->pairs();
    return pairs.empty() ? PairState{} : pairs.front();
  }
  std::optional<support::Relay> control_;
  std::optional<support::Relay> data_;
};

TEST_F(BehindNat, PeersDialTheAdvertisedPorts) {
  start_decode();
  ASSERT_TRUE(decode_);
  EXPECT_EQ(decode_->control_endpoint(), fmt::format("127.0.0.1:{}", control_->port()));
  run_room(1, 4);
  EXPECT_GT(control_->passed(support::Way::kToTarget), 0U);
  EXPECT_GT(data_->passed(support::Way::kToTarget), 4 * 16U);
}

TEST_F(BehindNat, APairIsReadyOnlyWhenItsDataPathWorks) {
  data_->freeze(true);  // as a firewall that drops: connections are made and nothing arrives
  start_decode();
  ASSERT_TRUE(decode_->keep_paired(registry_->address()));
  ASSERT_TRUE(test::await([&] {
    return pair_of_decode().reason == "its data path is being tested";
  })) << pair_of_decode().reason;
  EXPECT_FALSE(pair_of_decode().ready);
  EXPECT_TRUE(decode_->readiness_problems().empty());
  data_->freeze(false);
  ASSERT_TRUE(test::await([&] { return pair_of_decode().ready; })) << pair_of_decode().reason;
  EXPECT_EQ(test::metric(*decode_, "path_tests_passed_total"), 1);
  run_room(1, 4);
}

}  // namespace
}  // namespace kvferry
