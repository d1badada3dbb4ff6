// The cluster's shared secret and what it signs: rows of the registry and requests to it.
//
// Token file: the first line signs, both lines verify. To rotate without a gap, put the new token
// on the second line everywhere, then swap the lines everywhere, then drop the old one. The file is
// read again when it changed, so no process needs a restart.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.h"
#include "core/bootstrap_registry.h"
#include "kvferry/status.h"
#include "net/http.h"

namespace kvferry::runtime {

// Threads: any.
class ClusterTokens {
 public:
  // An empty path: no token, nothing is signed and everything verifies.
  static Result<std::unique_ptr<ClusterTokens>> load(std::string path);

  bool enabled() const { return !path_.empty(); }
  // Hexadecimal HMAC-SHA256; empty without a token.
  std::string sign(std::string_view text);
  bool verify(std::string_view text, std::string_view signature);

 private:
  ClusterTokens(std::string path, std::vector<std::string> tokens);
  std::vector<std::string> current();
  void reload_if_changed();

  const std::string path_;
  std::mutex mutex_;
  std::vector<std::string> tokens_;
  Instant next_look_{};
  std::int64_t changed_at_ = 0;  // of the file, nanoseconds
};

// Every field but the signature, each with its length, so that no two rows have the same text.
std::string row_text(const core::RegistryRow& row);

inline constexpr std::string_view kTimeHeader = "X-Kvferry-Time";            // Unix seconds
inline constexpr std::string_view kNonceHeader = "X-Kvferry-Nonce";          // 32 hex digits
inline constexpr std::string_view kSignatureHeader = "X-Kvferry-Signature";  // 64 hex digits

// method, target, time, nonce and body, a line each.
std::string request_text(const net::HttpRequest& request, std::string_view time,
                         std::string_view nonce);
// Adds the three headers with a fresh nonce; nothing without a token.
void sign_request(net::HttpRequest& request, ClusterTokens& tokens);

std::int64_t unix_seconds();

}  // namespace kvferry::runtime
