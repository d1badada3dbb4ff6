#include "lab/rig/registry_access.h"

#include <fmt/format.h>

#include <utility>

#include "net/http_client.h"
#include "runtime/json.h"

namespace kvferry::lab {
namespace {

constexpr std::uint32_t kPatienceMs = 1'000;
constexpr std::uint32_t kLeaseMs = 60'000;
constexpr const char* kTarget = "/v1/ranks";

Result<std::string> exchange(const std::string& registry, std::string method, std::string body) {
  const auto client = net::HttpClient::start();
  net::HttpRequest request;
  request.method = std::move(method);
  request.target = kTarget;
  request.body = std::move(body);
  net::HttpCallOptions options;
  options.address = registry;
  options.total_timeout_ms = kPatienceMs;
  auto response = client->fetch(std::move(options), std::move(request));
  if (!response) return tl::unexpected(response.error());
  if (response->status != 200) {
    return fail(FailureCode::kBootstrapFailed, fmt::format("registry {} answered {}: {}", registry,
                                                           response->status, response->body));
  }
  return std::move(response->body);
}

}  // namespace

Result<std::vector<core::RegistryRow>> list_ranks(const std::string& registry) {
  const auto body = exchange(registry, "GET", {});
  if (!body) return tl::unexpected(body.error());
  std::size_t skipped = 0;
  return runtime::decode_rows(*body, skipped);
}

Status register_rank(const std::string& registry, const core::RegistryRow& row) {
  const auto answer = exchange(registry, "PUT", runtime::encode_registration({row, kLeaseMs}));
  return answer ? Status{} : tl::unexpected(answer.error());
}

}  // namespace kvferry::lab
