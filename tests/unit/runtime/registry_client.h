// Requests to a registry as an honest and as a dishonest client would send them.
#pragma once

#include <string>
#include <utility>

#include "net/http_client.h"
#include "runtime/cluster_tokens.h"
#include "runtime/json.h"

namespace kvferry::test {

inline core::RegistryRow prefill_row(std::string endpoint, std::uint64_t incarnation) {
  core::RegistryRow row;
  row.instance = "p";
  row.endpoint = std::move(endpoint);
  row.incarnation = Incarnation{incarnation, 1};
  row.engine_epoch = EngineEpoch(1);
  return row;
}

class RegistryClient {
 public:
  RegistryClient(std::string address, const std::string& token_file)
      : tokens(std::move(*runtime::ClusterTokens::load(token_file))),
        address_(std::move(address)),
        client_(net::HttpClient::start()) {}

  net::HttpRequest request(std::string method, std::string target, std::string body = {}) {
    net::HttpRequest result;
    result.method = std::move(method);
    result.target = std::move(target);
    result.body = std::move(body);
    runtime::sign_request(result, *tokens);
    return result;
  }
  net::HttpRequest registration(std::string method, core::RegistryRow row,
                                std::uint32_t lease_ms = 10'000) {
    row.signature = tokens->sign(runtime::row_text(row));
    return request(std::move(method), "/v1/ranks", runtime::encode_registration({row, lease_ms}));
  }
  net::HttpResponse send(net::HttpRequest request) {
    net::HttpCallOptions options;
    options.address = address_;
    options.total_timeout_ms = 20'000;
    auto response = client_->fetch(std::move(options), std::move(request));
    return response ? std::move(*response) : net::HttpResponse{0, {}, response.error().what};
  }

  std::unique_ptr<runtime::ClusterTokens> tokens;

 private:
  std::string address_;
  std::unique_ptr<net::HttpClient> client_;
};

}  // namespace kvferry::test
