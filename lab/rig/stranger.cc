#include "lab/rig/stranger.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <zmq.hpp>

#include "base/crypto.h"
#include "lab/rig/registry_access.h"
#include "net/control_link.h"
#include "net/endpoint.h"
#include "net/zmq_sockets.h"

namespace kvferry::lab {
namespace {

constexpr int kSendPatienceMs = 5'000;
// No process has this port; nobody dials a decode rank anyway.
constexpr const char* kNowhere = "127.0.0.1:1";

class CurveStranger final : public ListedStranger {
 public:
  CurveStranger(std::string registry, net::CurveKeys keys)
      : registry_(std::move(registry)), keys_(std::move(keys)) {}

  Status dial(const std::string& instance) override {
    const auto rows = list_ranks(registry_);
    if (!rows) return tl::unexpected(rows.error());
    const auto row = std::ranges::find(*rows, instance, &core::RegistryRow::instance);
    const auto endpoint = row == rows->end() ? std::nullopt : net::parse_endpoint(row->endpoint);
    if (!endpoint) {
      return fail(FailureCode::kPrefillUnknown,
                  fmt::format("registry {} lists no {}", registry_, instance));
    }
    dealer_ = zmq::socket_t(context_, zmq::socket_type::dealer);
    dealer_.set(zmq::sockopt::linger, 0);
    dealer_.set(zmq::sockopt::sndtimeo, kSendPatienceMs);
    dealer_.set(zmq::sockopt::curve_serverkey, row->public_key);
    dealer_.set(zmq::sockopt::curve_publickey, keys_.public_key);
    dealer_.set(zmq::sockopt::curve_secretkey, keys_.secret_key);
    dealer_.connect(net::tcp_address(endpoint->host, endpoint->port));
    return {};
  }

  bool send(const std::vector<std::vector<std::uint8_t>>& parts) override {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      zmq::message_t part(parts[i].data(), parts[i].size());
      const auto flags = i + 1 < parts.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      if (!dealer_.send(part, flags)) return false;
    }
    return true;
  }

 private:
  const std::string registry_;
  const net::CurveKeys keys_;
  zmq::context_t context_{1};
  zmq::socket_t dealer_;
};

}  // namespace

Result<std::unique_ptr<ListedStranger>> ListedStranger::join(const std::string& registry,
                                                             const std::string& instance) {
  net::CurveKeys keys = net::CurveKeys::generate();
  core::RegistryRow row;
  row.role = Role::kDecode;
  row.instance = instance;
  row.endpoint = kNowhere;
  row.public_key = keys.public_key;
  row.incarnation = Incarnation{random_u64() | 1, random_u64()};
  row.engine_epoch = EngineEpoch(random_u64() | 1);
  if (Status registered = register_rank(registry, row); !registered) {
    return tl::unexpected(registered.error());
  }
  return std::unique_ptr<ListedStranger>(
      std::make_unique<CurveStranger>(registry, std::move(keys)));
}

}  // namespace kvferry::lab
