#include "cli/demo_cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "base/crypto.h"
#include "cli/chat_client.h"

namespace kvferry::cli {
namespace {

using std::chrono::seconds;

constexpr seconds kReadyDeadline{120};  // a model has to be read from a cold disk
constexpr seconds kPairDeadline{60};
constexpr seconds kEndGrace{5};
constexpr std::size_t kTailLines = 20;

}  // namespace

DemoCluster::DemoCluster(const DemoOptions& options, const Interrupt& interrupt)
    : options_(options), interrupt_(interrupt) {}

DemoCluster::~DemoCluster() {
  // The router first, so that no request meets a half-stopped pair.
  while (!children_.empty()) {
    children_.back()->end(kEndGrace);
    children_.pop_back();
  }
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status DemoCluster::make_folder() {
  if (!folder_.empty()) return {};
  const auto failed = [](std::string_view call, std::string_view path) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("{} {}: {}", call, path, std::strerror(errno)));
  };
  const char* base = std::getenv("TMPDIR");
  std::string pattern = std::string(base == nullptr || *base == 0 ? "/tmp" : base);
  pattern += "/kvferry-demo-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) return failed("mkdtemp", pattern);
  folder_ = pattern;
  token_file_ = folder_ + "/cluster-token";
  std::array<std::uint8_t, 32> secret{};
  fill_random(secret);
  const std::string token = to_hex(secret) + "\n";
  const int fd = ::open(token_file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return failed("open", token_file_);
  const bool written =
      ::write(fd, token.data(), token.size()) == static_cast<ssize_t>(token.size());
  ::close(fd);
  if (!written) return failed("write", token_file_);
  return {};
}

Result<ChildProcess*> DemoCluster::start(const std::string& name,
                                         std::vector<std::string> arguments) {
  if (const Status folder = make_folder(); !folder) return tl::unexpected<Failure>(folder.error());
  auto child =
      ChildProcess::start(name, std::move(arguments), fmt::format("{}/{}.log", folder_, name));
  if (!child) return tl::unexpected<Failure>(child.error());
  children_.push_back(std::move(*child));
  return children_.back().get();
}

Result<std::string> DemoCluster::start_and_wait(const std::string& name,
                                                std::vector<std::string> arguments) {
  const auto child = start(name, std::move(arguments));
  if (!child) return tl::unexpected<Failure>(child.error());
  return (*child)->wait_ready(interrupt_, kReadyDeadline);
}

std::vector<std::string> DemoCluster::serve_arguments(const std::string& role) const {
  std::vector<std::string> arguments = {"serve",         "--role", role, "--engine",
                                        options_.engine, "--port", "0"};
  const auto add = [&](const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
  };
  add({"--prefill-chunk-tokens", std::to_string(kDemoChunkTokens)});
  if (options_.engine == "llama") {
    add({"--model", options_.model});
  } else {
    // Its tokens are bytes, so the same texts are longer; a chunk takes a while, as with a model.
    add({"--context-tokens", "8192", "--synthetic-prefill-delay-ms", "20"});
  }
  if (role != "both") {
    add({"--instance", "demo-" + role, "--bootstrap-addresses", bootstrap_, "--cluster-token-file",
         token_file_, "--transport", options_.transport, "--require-identical"});
  }
  return arguments;
}

Result<std::string> DemoCluster::start_reference() {
  return start_and_wait("reference", serve_arguments("both"));
}

void DemoCluster::end_reference() {
  children_.front()->end(kEndGrace);
  children_.clear();
}

Status DemoCluster::start_fleet() {
  auto bootstrap = start_and_wait(
      "bootstrap", {"bootstrap", "--port", "0", "--cluster-token-file", token_file_});
  if (!bootstrap) return tl::unexpected<Failure>(bootstrap.error());
  bootstrap_ = *bootstrap;
  // Both read the model at the same time.
  const auto prefill = start("prefill", serve_arguments("prefill"));
  if (!prefill) return tl::unexpected<Failure>(prefill.error());
  const auto decode = start("decode", serve_arguments("decode"));
  if (!decode) return tl::unexpected<Failure>(decode.error());
  for (const auto& [child, address] :
       {std::pair{*prefill, &prefill_}, std::pair{*decode, &decode_}}) {
    auto ready = child->wait_ready(interrupt_, kReadyDeadline);
    if (!ready) return tl::unexpected<Failure>(ready.error());
    *address = *ready;
  }
  auto router = start_and_wait("router", {"router", "--port", "0", "--prefill", prefill_,
                                          "--decode", decode_, "--bootstrap", bootstrap_});
  if (!router) return tl::unexpected<Failure>(router.error());
  router_ = *router;
  return {};
}

Status DemoCluster::wait_paired(net::HttpClient& client) {
  std::string reason = "the router shows no pair";
  const bool paired = interrupt_.wait_until(
      [&] {
        const auto table = get_json(client, router_, "/v1/kvferry/pairs");
        if (!table) {
          reason = table.error().what;
          return !ended_process().empty();
        }
        const auto text = table->root()["pairs"].at(0)["reason"].text();
        if (text) reason = *text;
        return table->root()["ready_pairs"].integer().value_or(0) > 0 || !ended_process().empty();
      },
      kPairDeadline);
  if (const std::string ended = ended_process(); !ended.empty()) {
    return fail(FailureCode::kOperatingSystem, fmt::format("{} has ended", ended));
  }
  if (!paired) {
    return fail(FailureCode::kPeerUnreachable,
                fmt::format("prefill and decode are not paired: {}", reason));
  }
  return {};
}

std::string DemoCluster::ended_process() {
  for (const auto& child : children_) {
    if (!child->running()) return child->name();
  }
  return "";
}

std::string DemoCluster::log_tails() const {
  std::string out;
  for (const auto& child : children_) {
    out += fmt::format("--- end of {}'s log\n{}", child->name(), child->log_tail(kTailLines));
  }
  return out;
}

}  // namespace kvferry::cli
