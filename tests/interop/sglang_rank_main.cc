// One kvferry prefill rank with SGLang's dialect as a process, told what to do by lines of JSON:
//
//   kvferry_sglang_rank REGISTRY PORT TP_SIZE TP_RANK PAGES AUX_SLOTS
//
// REGISTRY is host:port of SGLang's bootstrap routes; with a * before it this process serves them
// there itself, as rank 0 of an SGLang server does. PORT is that of its own PULL socket (0: any).
// Sizes and layout are those of sglang_peer_main.py. Each line of input is a command with its
// arguments; the answer is a line of output: {"value": ...} or {"error": text}.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"
#include "dialect/sglang/node.h"
#include "dialect/sglang/sglang_routes.h"
#include "interop_rank.h"
#include "kvferry/kv_sender.h"
#include "net/endpoint.h"
#include "net/http_server.h"
#include "router/json.h"

namespace kvferry::sglang {
namespace {

struct Settings {
  std::string registry;
  bool serves_registry = false;
  std::uint16_t port = 0;
  RankSizes sizes;
};

class Rank {
 public:
  static std::unique_ptr<Rank> make(const Settings& settings, std::string& error);

  // The value of the answer as JSON. Throws std::runtime_error with the text of the error.
  std::string carry_out(router::JsonView command);

 private:
  explicit Rank(const Settings& settings) : settings_(settings) {}
  Status start();

  KvSender& sender(router::JsonView command) {
    return *senders_.at(static_cast<std::uint64_t>(command.at(1).integer().value()));
  }
  void fill(std::uint64_t seed);
  std::string digests(const std::vector<PageIndex>& of) const;
  std::string await_status(KvSender& sender, const std::string& name);

  const Settings settings_;
  RankMemory memory_;
  SglangRoutes routes_;
  std::unique_ptr<net::HttpServer> registry_;
  std::unique_ptr<DialectNode> node_;
  std::map<std::uint64_t, std::unique_ptr<KvSender>> senders_;
  std::size_t released_pages_ = 0;
};

std::unique_ptr<Rank> Rank::make(const Settings& settings, std::string& error) {
  std::unique_ptr<Rank> rank(new Rank(settings));
  if (const Status started = rank->start(); !started) {
    error = to_string(started.error());
    return nullptr;
  }
  return rank;
}

Status Rank::start() {
  if (settings_.serves_registry) {
    const auto endpoint = net::parse_endpoint(settings_.registry);
    net::HttpServerConfig config;
    config.port = endpoint ? endpoint->port : 0;
    auto server = net::HttpServer::start(
        config,
        [this](const net::HttpRequest& request, const std::shared_ptr<net::Responder>& responder) {
          responder->respond(routes_.answer(request, monotonic_now())
                                 .value_or(net::text_response(404, "404: Not Found")));
        });
    if (!server) {
      return tl::unexpected(server.error());
    }
    registry_ = std::move(*server);
  }
  DialectOptions dialect;
  dialect.port = settings_.port;
  dialect.registries = {registry_ ? registry_->address() : settings_.registry};
  dialect.aux.item_bytes = kAuxItemBytes;
  dialect.http_port = 30'000;
  Options options;
  // Short, so that a test sees what comes after it.
  options.unopened_room_timeout_ms = 1'500;
  auto node =
      DialectNode::create(rank_args(Role::kPrefill, settings_.sizes, memory_), options, dialect);
  if (!node) {
    return tl::unexpected(node.error());
  }
  node_ = std::move(*node);
  if (!node_->wait_registered(kPatience)) {
    return fail(FailureCode::kBootstrapFailed, "not registered");
  }
  fill(1);
  return {};
}

// Other bytes in every word of every page of every rank.
void Rank::fill(std::uint64_t seed) {
  std::uint64_t word = (seed << 32) + settings_.sizes.tp_rank;
  for (std::size_t region = 0; region + 1 < memory_.regions.size(); ++region) {
    for (std::size_t at = 0; at < memory_.regions[region].size(); at += sizeof word) {
      word += 0x9E37'79B9'7F4A'7C15;
      std::memcpy(memory_.regions[region].data() + at, &word, sizeof word);
    }
  }
}

std::string Rank::digests(const std::vector<PageIndex>& of) const {
  std::vector<std::string> out;
  for (std::size_t region = 0; region + 1 < memory_.regions.size(); ++region) {
    std::vector<std::uint8_t> bytes;
    for (const PageIndex page : of) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(memory_.regions[region].data()) +
                         page.value() * memory_.item_bytes;
      bytes.insert(bytes.end(), from, from + memory_.item_bytes);
    }
    out.push_back(fmt::format("\"{:02x}\"", fmt::join(hmac_sha256({}, bytes), "")));
  }
  return router::json_array(out);
}

std::string Rank::await_status(KvSender& sender, const std::string& name) {
  const Instant end = monotonic_now() + kPatience;
  for (;;) {
    const KvPoll status = sender.poll();
    if (to_string(status) == name || is_terminal(status)) {
      return router::json_quote(to_string(status));
    }
    if (monotonic_now() > end) {
      throw std::runtime_error(
          fmt::format("still {} after {} s", to_string(status), kPatience.count()));
    }
    pollfd news{node_->manager().event_fd(), POLLIN, 0};
    ::poll(&news, 1, 20);
    node_->manager().drain_event_fd();
  }
}

std::string Rank::carry_out(router::JsonView command) {
  const std::string verb = command.at(0).text().value();
  const auto number = [&](std::size_t at) { return command.at(at).integer().value(); };
  const auto done = [](const Status& status) {
    if (!status) {
      throw std::runtime_error(to_string(status.error()));
    }
    return std::string("null");
  };
  if (verb == "rank_port") {
    return fmt::format("{}", node_->endpoint().port);
  }
  if (verb == "open_sender") {
    const auto room = static_cast<std::uint64_t>(number(1));
    senders_[room] = std::make_unique<KvSender>(node_->manager(), RoomId(room), Binding{});
    return "null";
  }
  if (verb == "init") {  // room, pages in all, aux slot, first token
    const auto slot = static_cast<std::uint32_t>(number(3));
    const AuxRecord record{static_cast<std::int32_t>(number(4)), -0.5F, 40, 8};
    done(node_->manager().write_aux(slot, RoomId(static_cast<std::uint64_t>(number(1))), Binding{},
                                    record));
    return done(sender(command).init(static_cast<std::uint32_t>(number(2)), slot));
  }
  if (verb == "send") {  // room, pages
    return done(sender(command).send(page_list(command.at(2))));
  }
  if (verb == "await_status") {
    return await_status(sender(command), command.at(2).text().value());
  }
  if (verb == "await_landed") {  // room, bytes
    const Instant end = monotonic_now() + kPatience;
    while (sender(command).landed_bytes() < static_cast<std::uint64_t>(number(2))) {
      if (monotonic_now() > end) {
        throw std::runtime_error("the bytes did not land");
      }
      pollfd none{-1, 0, 0};
      ::poll(&none, 1, 1);
    }
    return "null";
  }
  if (verb == "prefix_pages") {
    return fmt::format("{}", sender(command).decode_prefix_pages());
  }
  if (verb == "failure") {
    const auto failure = sender(command).failure();
    return failure ? router::json_quote(failure->what) : "null";
  }
  if (verb == "abort") {
    sender(command).abort(command.at(2).text().value());
    return "null";
  }
  if (verb == "clear") {
    senders_.erase(static_cast<std::uint64_t>(number(1)));
    return "null";
  }
  if (verb == "fill") {
    fill(static_cast<std::uint64_t>(number(1)));
    return "null";
  }
  if (verb == "digests") {
    return digests(page_list(command.at(1)));
  }
  if (verb == "bytes") {  // page
    return hex_of(memory_, PageIndex(static_cast<std::uint32_t>(number(1))));
  }
  if (verb == "metric") {
    return fmt::format("{}", metric_of(node_->manager(), command.at(1).text().value()));
  }
  if (verb == "pairs") {
    std::vector<std::string> out;
    for (const PairState& pair : node_->manager().pairs()) {
      out.push_back(router::JsonObject()
                        .text("peer", pair.peer)
                        .boolean("ready", pair.ready)
                        .text("reason", pair.reason)
                        .str());
    }
    return router::json_array(out);
  }
  if (verb == "released_pages") {
    for (const ReleasedPages& released : node_->manager().take_released()) {
      released_pages_ += released.pages.size();
    }
    return fmt::format("{}", released_pages_);
  }
  if (verb == "forget_released") {
    node_->manager().take_released();
    released_pages_ = 0;
    return "null";
  }
  if (verb == "status") {
    return node_->manager().dump_status();
  }
  throw std::runtime_error("no such command: " + verb);
}

int serve(const Settings& settings) {
  std::string error;
  const std::unique_ptr<Rank> rank = Rank::make(settings, error);
  if (rank == nullptr) {
    fmt::print(stderr, "{}\n", error);
    return 1;
  }
  serve_commands([&rank](router::JsonView command) { return rank->carry_out(command); });
  return 0;
}

}  // namespace
}  // namespace kvferry::sglang

int main(int count, char** arguments) {
  if (count != 7) {
    fmt::print(stderr,
               "usage: kvferry_sglang_rank REGISTRY PORT TP_SIZE TP_RANK PAGES AUX_SLOTS\n");
    return 2;
  }
  kvferry::sglang::Settings settings;
  settings.registry = arguments[1];
  settings.serves_registry = settings.registry.starts_with('*');
  settings.registry.erase(0, settings.serves_registry ? 1 : 0);
  const auto number = [&](int at) { return static_cast<std::uint32_t>(std::stoul(arguments[at])); };
  settings.port = static_cast<std::uint16_t>(number(2));
  settings.sizes.tp_size = number(3);
  settings.sizes.tp_rank = number(4);
  settings.sizes.pages = number(5);
  settings.sizes.aux_slots = number(6);
  return kvferry::sglang::serve(settings);
}
