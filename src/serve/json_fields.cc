#include "serve/json_fields.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <limits>

#include "base/crypto.h"

namespace kvferry::serve {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 256;

// SGLang's router names a request by room and bootstrap address alone. Both servers get the same
// text of them and so derive the same binding; a retry has another room, hence another binding.
Binding derived_binding(const RoomFields& room) {
  constexpr std::string_view kLabel = "kvferry binding of an SGLang room";
  const std::string names =
      fmt::format("{}\n{}\n{}", room.bootstrap_host, room.bootstrap_port, room.room.value());
  const auto bytes = [](std::string_view text) {
    return std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  const Digest digest = hmac_sha256(bytes(kLabel), bytes(names));
  Binding binding;
  for (std::size_t at = 0; at < 8; ++at) {
    binding.high = binding.high << 8 | digest[at];
    binding.low = binding.low << 8 | digest[at + 8];
  }
  binding.low |= 1;  // zero means none
  return binding;
}

}  // namespace

void refuse(std::string_view param, std::string message, std::string code) {
  throw Refused{
      {400, std::move(message), "invalid_request_error", std::string(param), std::move(code)}};
}

void wrong_type(std::string_view param, std::string_view wanted, const json::value& value) {
  refuse(param, fmt::format("'{}' must be {}, not {}", param, wanted, kind_name(value)),
         "invalid_type");
}

void refuse_unsupported(std::string_view param) {
  refuse(param, fmt::format("'{}' with this value is not supported by this server", param),
         "unsupported");
}

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

std::string text_of(std::string_view param, const json::value& value) {
  if (!value.is_string()) wrong_type(param, "a string", value);
  return std::string(value.get_string());
}

bool flag_of(std::string_view param, const json::value& value) {
  if (!value.is_bool()) wrong_type(param, "a boolean", value);
  return value.get_bool();
}

double number_of(std::string_view param, const json::value& value, double low, double high) {
  if (!value.is_number()) wrong_type(param, "a number", value);
  const double number = value.to_number<double>();
  if (!(number >= low && number <= high)) {
    refuse(param,
           fmt::format("'{}' is {}; it must lie between {} and {}", param, number, low, high));
  }
  return number;
}

std::uint64_t integer_of(std::string_view param, const json::value& value, std::uint64_t low,
                         std::uint64_t high) {
  if (!value.is_int64() && !value.is_uint64()) wrong_type(param, "an integer", value);
  const bool negative = value.is_int64() && value.get_int64() < 0;
  const std::uint64_t number = negative ? 0 : value.to_number<std::uint64_t>();
  if (negative || number < low || number > high) {
    refuse(param, fmt::format("'{}' must lie between {} and {}", param, low, high));
  }
  return number;
}

std::uint64_t seed_of(std::string_view param, const json::value& value) {
  if (!value.is_int64() && !value.is_uint64()) wrong_type(param, "an integer", value);
  return value.is_int64() ? static_cast<std::uint64_t>(value.get_int64()) : value.get_uint64();
}

std::vector<Token> tokens_of(std::string_view param, const json::value& value) {
  if (!value.is_array()) wrong_type(param, "an array of tokens", value);
  std::vector<Token> tokens;
  for (const auto& item : value.get_array()) {
    tokens.push_back(
        static_cast<Token>(integer_of(param, item, 0, std::numeric_limits<Token>::max())));
  }
  return tokens;
}

std::vector<std::string> stops_of(std::string_view param, const json::value& value) {
  std::vector<std::string> stops;
  if (value.is_string()) {
    stops.emplace_back(value.get_string());
  } else if (value.is_array()) {
    for (const auto& item : value.get_array()) {
      stops.push_back(text_of(param, item));
    }
  } else {
    wrong_type(param, "a string or an array of strings", value);
  }
  if (stops.size() > kMaxStops) {
    refuse(param,
           fmt::format("'{}' has {} strings, the limit is {}", param, stops.size(), kMaxStops));
  }
  for (const auto& text : stops) {
    if (text.empty() || text.size() > kMaxStopBytes) {
      refuse(param, fmt::format("a stop string has {} bytes; 1 to {} are possible", text.size(),
                                kMaxStopBytes));
    }
  }
  return stops;
}

bool RoomReader::read(std::string_view key, const json::value& value) {
  const bool named = key == "bootstrap_host" || key == "bootstrap_port" || key == "bootstrap_room";
  if (named && value.is_array()) {
    refuse(
        key,
        fmt::format("'{}' is an array, as for a batch or 'n' above 1; send one request each", key),
        "unsupported");
  }
  if (key == "bootstrap_host") {
    room_.bootstrap_host = text_of(key, value);
    if (room_.bootstrap_host.empty()) refuse(key, "'bootstrap_host' is empty");
    host_ = true;
  } else if (key == "bootstrap_port") {
    room_.bootstrap_port = static_cast<std::uint16_t>(integer_of(key, value, 1, 65'535));
    port_ = true;
  } else if (key == "bootstrap_room") {
    room_.room = RoomId(integer_of(key, value, 0, std::numeric_limits<std::uint64_t>::max()));
    number_ = true;
  } else if (key == "kvferry_binding") {
    const auto binding = Binding::from_hex(text_of(key, value));
    if (!binding || binding->is_zero()) {
      refuse(key, "'kvferry_binding' must be 32 hexadecimal digits, not all zero");
    }
    room_.binding = *binding;
    binding_ = true;
  } else if (key == "kvferry_prefill") {
    room_.prefill_instance = text_of(key, value);
  } else {
    return false;
  }
  return true;
}

std::optional<RoomFields> RoomReader::finish() const {
  if (!host_ && !port_ && !number_ && !binding_) {
    return std::nullopt;
  }
  const auto need = [](bool there, std::string_view name) {
    if (!there) {
      refuse(
          name,
          fmt::format("'{}' is missing: the fields of a room come together, from the router", name),
          "missing");
    }
  };
  need(host_, "bootstrap_host");
  need(number_, "bootstrap_room");
  if (binding_) {
    need(port_, "bootstrap_port");
    return room_;
  }
  RoomFields room = room_;
  room.binding = derived_binding(room);
  room.binding_derived = true;
  return room;
}

}  // namespace kvferry::serve
