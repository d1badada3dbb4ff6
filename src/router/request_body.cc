#include "router/request_body.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/crypto.h"
#include "router/json.h"

namespace kvferry::router {
namespace {

constexpr std::array<std::string_view, 5> kAddedFields = {
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "kvferry_binding", "kvferry_prefill"};

}  // namespace

TransferNames TransferNames::draw() {
  TransferNames names;
  names.room = RoomId(random_u64() >> 1);
  names.binding = Binding{random_u64(), random_u64() | 1U};
  return names;
}

Result<BootstrapAddress> parse_address(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("'{}' is not an address: {} (expected host:port)", text, why));
  };
  std::string_view rest = text;
  constexpr std::string_view kScheme = "http://";
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return bad("no port");
  const std::string_view port = rest.substr(colon + 1);
  std::string_view host = rest.substr(0, colon);
  if (host.empty()) return bad("no host");
  if (host.front() != '[' && host.find_first_of(":/") != std::string_view::npos) {
    return bad("the host has a ':' or '/'");
  }
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc{} || end != port.data() + port.size() || number == 0 || number > 65'535) {
    return bad("the port is not a number from 1 to 65535");
  }
  return BootstrapAddress{std::string(host), static_cast<std::uint16_t>(number)};
}

Status check_request_body(std::string_view body) {
  const auto document = JsonDocument::parse(body);
  if (!document) {
    Failure failure = document.error();
    failure.what = "the request body is " + failure.what;
    return tl::unexpected<Failure>(std::move(failure));
  }
  const JsonView root = document->root();
  if (!root.is_object()) {
    return fail(FailureCode::kInvalidArgument, "the request body is not a JSON object (byte 0)");
  }
  for (const std::string_view name : kAddedFields) {
    if (root[name].exists()) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("field '{}' is set by the router and must not be sent", name));
    }
  }
  return {};
}

std::string add_transfer_fields(std::string_view body, const BootstrapAddress& bootstrap,
                                const TransferNames& names, std::string_view prefill_instance) {
  JsonObject added;
  added.text("bootstrap_host", bootstrap.host)
      .integer("bootstrap_port", bootstrap.port)
      .integer("bootstrap_room", static_cast<std::int64_t>(names.room.value()))
      .text("kvferry_binding", names.binding.to_hex())
      .text("kvferry_prefill", prefill_instance);
  std::string out = added.str();
  out.pop_back();  // its '}'; the client's own fields follow
  std::string_view rest = body.substr(body.find('{') + 1);
  if (rest.find_first_not_of(" \t\r\n") != rest.find('}')) out += ',';
  out += rest;
  return out;
}

std::string openai_error(int status, std::string_view message, std::string_view code) {
  JsonObject error;
  error.text("message", message)
      .text("type", status < 500 ? "invalid_request_error" : "server_error")
      .raw("param", "null")
      .text("code", code);
  return JsonObject().raw("error", error.str()).str();
}

net::HttpResponse error_response(int status, std::string_view message, std::string_view code) {
  return net::json_response(status, openai_error(status, message, code));
}

net::HttpResponse error_response(const Failure& failure) {
  return error_response(http_status(failure.code), to_string(failure), to_string(failure.code));
}

}  // namespace kvferry::router
