// One kvferry decode rank with SGLang's dialect as a process, told what to do by lines of JSON:
//
//   kvferry_sglang_decode REGISTRY TP_SIZE TP_RANK PAGES AUX_SLOTS PATIENCE_MS
//
// Built as a library, too, for a process that has a NIXL agent (nixl_decode_main.py) and so speaks
// that flavour.
//
// REGISTRY is host:port of SGLang's bootstrap routes. Rooms wait PATIENCE_MS for their prefill
// ranks to be found there. Sizes and layout are those of
// sglang_peer_main.py. Each line of input is a command with its arguments; the answer is a line of
// output: {"value": ...} or {"error": text}.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "dialect/sglang/node.h"
#include "interop_rank.h"
#include "kvferry/kv_receiver.h"
#include "router/json.h"

namespace kvferry::sglang {
namespace {

struct Settings {
  std::string registry;
  RankSizes sizes;
  std::uint32_t patience_ms = 5'000;
  NixlAgentMaker nixl_agent;  // if there, NIXL's flavour is spoken
};

class DecodeRank {
 public:
  explicit DecodeRank(const Settings& settings) : settings_(settings) {}
  Status start();
  // The value of the answer as JSON. Throws std::runtime_error with the text of the error.
  std::string carry_out(router::JsonView command);

 private:
  std::uint64_t room_of(router::JsonView command) const {
    return static_cast<std::uint64_t>(command.at(1).integer().value());
  }
  KvReceiver& receiver(router::JsonView command) { return *receivers_.at(room_of(command)); }
  std::string written_pages() const;
  std::string await_status(KvReceiver& receiver, const std::string& name);
  std::string aux_of(std::uint32_t slot, RoomId room) const;
  void take_released();
  void await(const std::string& what, const std::function<bool()>& condition);

  const Settings settings_;
  RankMemory memory_;
  std::unique_ptr<DialectNode> node_;
  std::map<std::uint64_t, std::unique_ptr<KvReceiver>> receivers_;
  std::vector<std::uint32_t> released_;  // pages
};

Status DecodeRank::start() {
  DialectOptions dialect;
  dialect.registries = {settings_.registry};
  dialect.aux.item_bytes = kAuxItemBytes;
  dialect.flavour = settings_.nixl_agent ? Flavour::kNixl : Flavour::kMooncake;
  dialect.nixl_agent = settings_.nixl_agent;
  Options options;
  options.http_total_timeout_ms = settings_.patience_ms;
  options.bootstrap_timeout_ms = 2 * settings_.patience_ms;
  auto node =
      DialectNode::create(rank_args(Role::kDecode, settings_.sizes, memory_), options, dialect);
  if (!node) {
    return tl::unexpected(node.error());
  }
  node_ = std::move(*node);
  return {};
}

// Where a byte is not 0.
std::string DecodeRank::written_pages() const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t page = 0; page < settings_.sizes.pages; ++page) {
    const bool written =
        std::any_of(memory_.regions.begin(), memory_.regions.end() - 1, [&](const auto& region) {
          const auto from = region.begin() + static_cast<std::ptrdiff_t>(page * memory_.item_bytes);
          return std::any_of(from, from + static_cast<std::ptrdiff_t>(memory_.item_bytes),
                             [](std::byte byte) { return byte != std::byte{0}; });
        });
    if (written) {
      out.push_back(page);
    }
  }
  return fmt::format("{}", out);
}

void DecodeRank::await(const std::string& what, const std::function<bool()>& condition) {
  const Instant end = monotonic_now() + kPatience;
  while (!condition()) {
    if (monotonic_now() > end) {
      throw std::runtime_error(fmt::format("{} did not happen in {} s", what, kPatience.count()));
    }
    pollfd news{node_->manager().event_fd(), POLLIN, 0};
    ::poll(&news, 1, 20);
    node_->manager().drain_event_fd();
  }
}

std::string DecodeRank::await_status(KvReceiver& receiver, const std::string& name) {
  KvPoll status = receiver.poll();
  await(name, [&] {
    status = receiver.poll();
    return to_string(status) == name || is_terminal(status);
  });
  return router::json_quote(to_string(status));
}

std::string DecodeRank::aux_of(std::uint32_t slot, RoomId room) const {
  const auto record = node_->manager().read_aux(slot, room, Binding{});
  if (!record) {
    throw std::runtime_error(to_string(record.error()));
  }
  return fmt::format(R"({{"token": {}, "cached": {}, "logprob": {}}})", record->first_token,
                     record->cached_tokens, record->first_logprob);
}

void DecodeRank::take_released() {
  for (const ReleasedPages& released : node_->manager().take_released()) {
    for (const PageIndex page : released.pages) {
      released_.push_back(page.value());
    }
  }
}

std::string DecodeRank::carry_out(router::JsonView command) {
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
  if (verb == "open_receiver") {
    auto& made = receivers_[room_of(command)];
    made = std::make_unique<KvReceiver>(node_->manager(), RoomId(room_of(command)), Binding{});
    return done(made->init(settings_.registry, ""));
  }
  if (verb == "send_metadata") {  // room, pages, aux slot, prefix in tokens
    return done(receiver(command).send_metadata(page_list(command.at(2)), number(3), {},
                                                static_cast<std::uint32_t>(number(4)),
                                                settings_.sizes.tp_size));
  }
  if (verb == "await_status") {
    return await_status(receiver(command), command.at(2).text().value());
  }
  if (verb == "await_released") {  // so many pages in all
    await("the release of pages", [&] {
      take_released();
      return released_.size() >= static_cast<std::size_t>(number(1));
    });
    return fmt::format("{}", released_);
  }
  if (verb == "released") {
    take_released();
    return fmt::format("{}", released_);
  }
  if (verb == "forget_released") {
    take_released();
    released_.clear();
    return "null";
  }
  if (verb == "failure") {
    const auto failure = receiver(command).failure();
    return failure ? router::json_quote(failure->what) : "null";
  }
  if (verb == "abort") {
    receiver(command).abort("the test aborts it");
    return "null";
  }
  if (verb == "clear") {
    receivers_.erase(room_of(command));
    return "null";
  }
  if (verb == "bytes") {  // page
    return hex_of(memory_, PageIndex(static_cast<std::uint32_t>(number(1))));
  }
  if (verb == "written_pages") {
    return written_pages();
  }
  if (verb == "clear_memory") {
    for (auto& region : memory_.regions) {
      std::fill(region.begin(), region.end(), std::byte{0});
    }
    return "null";
  }
  if (verb == "aux_of") {  // room, slot
    return aux_of(static_cast<std::uint32_t>(number(2)), RoomId(room_of(command)));
  }
  if (verb == "metric") {
    return fmt::format("{}", metric_of(node_->manager(), command.at(1).text().value()));
  }
  if (verb == "status") {
    return node_->manager().dump_status();
  }
  throw std::runtime_error("no such command: " + verb);
}

int serve(int count, char** arguments, NixlAgentMaker nixl_agent) {
  if (count != 7) {
    fmt::print(stderr,
               "usage: kvferry_sglang_decode REGISTRY TP_SIZE TP_RANK PAGES AUX_SLOTS "
               "PATIENCE_MS\n");
    return 2;
  }
  const auto number = [&](int at) { return static_cast<std::uint32_t>(std::stoul(arguments[at])); };
  DecodeRank rank({arguments[1],
                   {number(2), number(3), number(4), number(5)},
                   number(6),
                   std::move(nixl_agent)});
  if (const Status started = rank.start(); !started) {
    fmt::print(stderr, "{}\n", to_string(started.error()));
    return 1;
  }
  serve_commands([&rank](router::JsonView command) { return rank.carry_out(command); });
  return 0;
}

}  // namespace
}  // namespace kvferry::sglang

// The caller's agent for so many pieces of memory. It leaves a name that ends with 0 and the
// metadata where it is told, and returns the size of the metadata; 0: it could not be made.
using MakeNixlAgent = std::size_t (*)(const std::uint64_t* addresses, const std::uint64_t* bytes,
                                      std::size_t count, char* name, std::size_t name_bytes,
                                      std::uint8_t* metadata, std::size_t metadata_bytes);

extern "C" int kvferry_sglang_decode(int count, char** arguments, MakeNixlAgent make) {
  using namespace kvferry;
  return sglang::serve(
      count, arguments,
      [make](std::span<const std::span<std::byte>> memory) -> Result<sglang::NixlAgent> {
        std::vector<std::uint64_t> addresses;
        std::vector<std::uint64_t> bytes;
        for (const std::span<std::byte> piece : memory) {
          addresses.push_back(reinterpret_cast<std::uint64_t>(piece.data()));
          bytes.push_back(piece.size());
        }
        std::array<char, 256> name{};
        std::vector<std::uint8_t> metadata(1U << 20);
        metadata.resize(make(addresses.data(), bytes.data(), memory.size(), name.data(),
                             name.size(), metadata.data(), metadata.size()));
        if (metadata.empty()) {
          return fail(FailureCode::kOperatingSystem, "the NIXL agent could not be made");
        }
        return sglang::NixlAgent{name.data(), std::move(metadata)};
      });
}

#ifndef KVFERRY_AS_LIBRARY
int main(int count, char** arguments) { return kvferry::sglang::serve(count, arguments, {}); }
#endif
