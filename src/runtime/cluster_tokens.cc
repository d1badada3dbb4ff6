#include "runtime/cluster_tokens.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/log.h"

namespace kvferry::runtime {
namespace {

constexpr Duration kLookInterval = std::chrono::seconds(1);
constexpr std::size_t kMaxTokenBytes = 4'096;
constexpr std::size_t kShortTokenBytes = 16;

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::int64_t changed_at(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return -1;
  }
  return info.st_mtim.tv_sec * 1'000'000'000LL + info.st_mtim.tv_nsec;
}

std::string trimmed(const std::string& line) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = line.find_first_not_of(kSpace);
  if (first == std::string::npos) {
    return {};
  }
  return line.substr(first, line.find_last_not_of(kSpace) - first + 1);
}

Result<std::vector<std::string>> read_tokens(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("cluster_token_file {}: {}", path, std::strerror(errno)));
  }
  std::vector<std::string> tokens;
  for (std::string line; tokens.size() < 2 && std::getline(file, line);) {
    std::string token = trimmed(line);
    if (token.size() > kMaxTokenBytes) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("cluster_token_file {}: a token is longer than {} bytes", path,
                              kMaxTokenBytes));
    }
    if (token.empty()) {
      break;
    }
    if (token.size() < kShortTokenBytes) {
      log::warning("cluster_token_file {}: a token shorter than {} bytes can be guessed", path,
                   kShortTokenBytes);
    }
    tokens.push_back(std::move(token));
  }
  if (tokens.empty()) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("cluster_token_file {}: the first line has no token", path));
  }
  return tokens;
}

std::string hmac_hex(std::string_view token, std::string_view text) {
  return to_hex(hmac_sha256(bytes_of(token), bytes_of(text)));
}

// Takes as long for any two texts of equal length.
bool equal_texts(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) {
    return false;
  }
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace

Result<std::unique_ptr<ClusterTokens>> ClusterTokens::load(std::string path) {
  std::vector<std::string> tokens;
  if (!path.empty()) {
    Result<std::vector<std::string>> read = read_tokens(path);
    if (!read) {
      return tl::unexpected(read.error());
    }
    tokens = std::move(*read);
  }
  return std::unique_ptr<ClusterTokens>(new ClusterTokens(std::move(path), std::move(tokens)));
}

ClusterTokens::ClusterTokens(std::string path, std::vector<std::string> tokens)
    : path_(std::move(path)), tokens_(std::move(tokens)), changed_at_(changed_at(path_)) {}

void ClusterTokens::reload_if_changed() {
  const Instant now = monotonic_now();
  if (!enabled() || now < next_look_) {
    return;
  }
  next_look_ = now + kLookInterval;
  const std::int64_t changed = changed_at(path_);
  if (changed == changed_at_) {
    return;
  }
  changed_at_ = changed;
  Result<std::vector<std::string>> read = read_tokens(path_);
  if (!read) {
    // Better the old tokens than none: a half-written file is read again when it changes next.
    log::warning("kept the former cluster tokens: {}", read.error().what);
    return;
  }
  tokens_ = std::move(*read);
}

std::vector<std::string> ClusterTokens::current() {
  std::lock_guard lock(mutex_);
  reload_if_changed();
  return tokens_;
}

std::string ClusterTokens::sign(std::string_view text) {
  const std::vector<std::string> tokens = current();
  return tokens.empty() ? std::string() : hmac_hex(tokens.front(), text);
}

bool ClusterTokens::verify(std::string_view text, std::string_view signature) {
  if (!enabled()) {
    return true;
  }
  bool verified = false;
  for (const std::string& token : current()) {
    verified = equal_texts(hmac_hex(token, text), signature) || verified;
  }
  return verified;
}

std::string row_text(const core::RegistryRow& row) {
  std::string text = "kvferry-row\n";
  const auto add = [&text](std::string_view value) {
    fmt::format_to(std::back_inserter(text), "{}:{}\n", value.size(), value);
  };
  add(to_string(row.role));
  add(row.instance);
  for (const std::uint32_t number : {row.rank.tp_rank, row.rank.tp_size, row.rank.pp_rank,
                                     row.rank.pp_size, row.rank.dp_rank, row.rank.dp_size}) {
    add(fmt::format("{}", number));
  }
  add(row.endpoint);
  add(row.public_key);
  add(row.incarnation.to_hex());
  add(fmt::format("{}", row.engine_epoch.value()));
  return text;
}

std::string request_text(const net::HttpRequest& request, std::string_view time,
                         std::string_view nonce) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", request.method, request.target, time, nonce,
                     request.body);
}

void sign_request(net::HttpRequest& request, ClusterTokens& tokens) {
  if (!tokens.enabled()) {
    return;
  }
  std::array<std::uint8_t, 16> random{};
  fill_random(random);
  const std::string nonce = to_hex(random);
  const std::string time = fmt::format("{}", unix_seconds());
  request.headers.set(std::string(kTimeHeader), time);
  request.headers.set(std::string(kNonceHeader), nonce);
  request.headers.set(std::string(kSignatureHeader),
                      tokens.sign(request_text(request, time, nonce)));
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace kvferry::runtime
