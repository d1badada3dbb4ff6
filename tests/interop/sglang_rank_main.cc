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
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crypto.h"
#include "dialect/sglang/node.h"
#include "dialect/sglang/sglang_routes.h"
#include "kvferry/kv_sender.h"
#include "net/endpoint.h"
#include "net/http_server.h"
#include "router/json.h"

namespace kvferry::sglang {
namespace {

constexpr std::uint32_t kLayers = 2;
constexpr std::uint32_t kHeads = 8;  // of all ranks
constexpr std::uint32_t kHeadDim = 16;
constexpr std::uint32_t kPageTokens = 16;
constexpr auto kPatience = std::chrono::seconds(20);
const std::vector<std::uint32_t> kAuxItemBytes{64, 64, 64, 64, 512, 512, 64};

struct Settings {
  std::string registry;
  bool serves_registry = false;
  std::uint16_t port = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t tp_rank = 0;
  std::uint32_t pages = 64;
  std::uint32_t aux_slots = 16;
};

class Rank {
 public:
  static std::unique_ptr<Rank> make(const Settings& settings, std::string& error);

  // The value of the answer as JSON. Throws std::runtime_error with the text of the error.
  std::string carry_out(router::JsonView command);

 private:
  explicit Rank(const Settings& settings) : settings_(settings) {}
  Status start();
  KvArgs args();

  KvSender& sender(router::JsonView command) {
    return *senders_.at(static_cast<std::uint64_t>(command.at(1).integer().value()));
  }
  static std::vector<PageIndex> pages(router::JsonView list) {
    std::vector<PageIndex> out;
    for (std::size_t i = 0; i < list.size(); ++i) {
      out.emplace_back(static_cast<std::uint32_t>(list.at(i).integer().value()));
    }
    return out;
  }
  void fill(std::uint64_t seed);
  std::string digests(const std::vector<PageIndex>& of) const;
  std::string await_status(KvSender& sender, const std::string& name);
  double metric(const std::string& name) const;

  const Settings settings_;
  std::uint64_t item_bytes_ = 0;
  std::vector<std::vector<std::byte>> memory_;  // by region
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

KvArgs Rank::args() {
  const std::uint32_t heads = kHeads / settings_.tp_size;
  item_bytes_ = std::uint64_t{kPageTokens} * heads * kHeadDim;
  KvArgs args;
  args.role = Role::kPrefill;
  args.rank.tp_size = settings_.tp_size;
  args.rank.tp_rank = settings_.tp_rank;
  args.engine_epoch = EngineEpoch(1);
  args.model_fingerprint = "interop";
  args.page_size_tokens = kPageTokens;
  args.total_layers = kLayers;
  args.total_kv_heads = kHeads;
  args.head_dim = kHeadDim;
  args.dtype = DType::kU8;
  args.layers = {0, kLayers};
  args.heads = {settings_.tp_rank * heads, (settings_.tp_rank + 1) * heads};
  for (const RegionKind kind : {RegionKind::kKey, RegionKind::kValue}) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      memory_.emplace_back(item_bytes_ * settings_.pages);
      args.regions.push_back({kind, layer, memory_.back().data(), item_bytes_, settings_.pages});
    }
  }
  memory_.emplace_back(std::size_t{kAuxRecordBytes} * settings_.aux_slots);
  args.regions.push_back(
      {RegionKind::kAux, 0, memory_.back().data(), kAuxRecordBytes, settings_.aux_slots});
  return args;
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
  auto node = DialectNode::create(args(), options, dialect);
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
  std::uint64_t word = (seed << 32) + settings_.tp_rank;
  for (std::size_t region = 0; region + 1 < memory_.size(); ++region) {
    for (std::size_t at = 0; at < memory_[region].size(); at += sizeof word) {
      word += 0x9E37'79B9'7F4A'7C15;
      std::memcpy(memory_[region].data() + at, &word, sizeof word);
    }
  }
}

std::string Rank::digests(const std::vector<PageIndex>& of) const {
  std::vector<std::string> out;
  for (std::size_t region = 0; region + 1 < memory_.size(); ++region) {
    std::vector<std::uint8_t> bytes;
    for (const PageIndex page : of) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(memory_[region].data()) +
                         page.value() * item_bytes_;
      bytes.insert(bytes.end(), from, from + item_bytes_);
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

// Of all labels together.
double Rank::metric(const std::string& name) const {
  double sum = 0;
  for (const MetricSample& sample : node_->manager().metrics()) {
    sum += sample.name == name ? sample.value : 0;
  }
  return sum;
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
    return done(sender(command).send(pages(command.at(2))));
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
    return digests(pages(command.at(1)));
  }
  if (verb == "metric") {
    return fmt::format("{}", metric(command.at(1).text().value()));
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
  fmt::print("{{\"value\": \"ready\"}}\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer;
    try {
      const auto command = router::JsonDocument::parse(line);
      answer = fmt::format("{{\"value\": {}}}", rank->carry_out(command.value().root()));
    } catch (const std::exception& wrong) {
      answer = router::JsonObject().text("error", wrong.what()).str();
    }
    fmt::print("{}\n", answer);
    std::fflush(stdout);
  }
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
  settings.tp_size = number(3);
  settings.tp_rank = number(4);
  settings.pages = number(5);
  settings.aux_slots = number(6);
  return kvferry::sglang::serve(settings);
}
