// Asks each server for /readyz, and each decode server for its table of pairs, every interval, and
// reports to the fleet. One question per server is under way at a time, so a hung server costs its
// own row only.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "net/http_client.h"
#include "router/fleet.h"

namespace kvferry::router {

struct PollerConfig {
  std::vector<std::string> prefill;
  std::vector<std::string> decode;
  std::uint32_t interval_ms = 250;
  std::uint32_t connect_timeout_ms = 1'000;
  std::uint32_t timeout_ms = 2'000;
};

// What the servers' answers say; for tests too.
ServerReport read_readyz(int status, std::string_view body);
Result<std::vector<PairReport>> read_pairs(int status, std::string_view body);

class Poller {
 public:
  // client and fleet outlive the poller.
  Poller(PollerConfig config, net::HttpClient& client, Fleet& fleet);
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

 private:
  struct Question;  // one server and one path
  void ask_all();
  void run(const std::stop_token& stop);

  const PollerConfig config_;
  net::HttpClient& client_;
  std::vector<std::shared_ptr<Question>> questions_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: the others outlive it
};

}  // namespace kvferry::router
