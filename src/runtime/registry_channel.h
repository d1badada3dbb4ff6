// Signed requests of one thread to one registry, which another thread can cut short.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "kvferry/status.h"
#include "net/http_client.h"
#include "runtime/cluster_tokens.h"

namespace kvferry::runtime {

class RegistryChannel {
 public:
  RegistryChannel(std::string address, net::HttpClient& client, ClusterTokens& tokens);
  ~RegistryChannel();

  // Waits for the whole answer, at most timeout_ms. Any HTTP status is an answer; fails with
  // kBootstrapFailed when none came.
  Result<net::HttpResponse> exchange(std::string method, std::string target, std::string body,
                                     std::uint32_t timeout_ms);
  // Any thread: the exchange under way and all later ones fail at once, until resume().
  void interrupt();
  void resume();

 private:
  struct Exchange;

  const std::string address_;
  net::HttpClient& client_;
  ClusterTokens& tokens_;
  std::mutex mutex_;
  std::shared_ptr<Exchange> current_;
  bool interrupted_ = false;
};

}  // namespace kvferry::runtime
