#include "dialect/sglang/messages.h"

#include <fmt/format.h>

#include <array>

namespace kvferry::sglang {
namespace {

// In the order of Message.
constexpr std::array<std::string_view, std::variant_size_v<Message>> kKindNames = {
    "mooncake-registration",
    "nixl-registration",
    "mooncake-metadata",
    "nixl-metadata",
    "status",
    "abort",
    "abort-ack",
    "aux-data",
    "chunk-ready",
    "staging-req",
    "staging-rsp",
    "watermark",
    "bootstrap"};

}  // namespace

std::string_view to_string(Flavour flavour) {
  switch (flavour) {
    case Flavour::kMooncake:
      return "mooncake";
    case Flavour::kNixl:
      return "nixl";
    case Flavour::kMori:
      return "mori";
  }
  return "unknown";
}

std::string_view kind_name(std::size_t kind) {
  return kind < kKindNames.size() ? kKindNames[kind] : "unknown";
}

std::string_view kind_name(const Message& message) { return kind_name(message.index()); }

std::string to_text(const RankEndpoint& endpoint) {
  return endpoint.ip.find(':') == std::string::npos
             ? fmt::format("{}:{}", endpoint.ip, endpoint.port)
             : fmt::format("[{}]:{}", endpoint.ip, endpoint.port);
}

}  // namespace kvferry::sglang
