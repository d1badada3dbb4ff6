#include "dialect/sglang/sglang_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

namespace kvferry::sglang {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxTextBytes = 256;

tl::unexpected<Failure> malformed(std::string what) {
  return fail(FailureCode::kMalformed, std::move(what), FailureWhere::kPeer);
}

Result<json::object> parse_object(std::string_view text) {
  json::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) {
    return malformed(fmt::format("the body is no JSON: {}", error.message()));
  }
  if (!value.is_object()) {
    return malformed("the body is no JSON object");
  }
  return std::move(value.get_object());
}

// Python's int(): whole numbers, the whole part of others, and texts of digits.
std::optional<std::int64_t> to_int(const json::value& value) {
  if (value.is_int64()) {
    return value.get_int64();
  }
  if (value.is_double()) {
    const double number = std::trunc(value.get_double());
    const bool fits = std::isfinite(number) && std::abs(number) < 9e15;
    return fits ? std::optional(static_cast<std::int64_t>(number)) : std::nullopt;
  }
  if (const json::string* text = value.if_string(); text != nullptr) {
    std::int64_t number = 0;
    const char* const end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data(), end, number);
    return error == std::errc{} && stop == end ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

// Python's bool().
bool to_bool(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return false;
    case json::kind::bool_:
      return value.get_bool();
    case json::kind::int64:
      return value.get_int64() != 0;
    case json::kind::uint64:
      return value.get_uint64() != 0;
    case json::kind::double_:
      return value.get_double() != 0;
    case json::kind::string:
      return !value.get_string().empty();
    case json::kind::array:
      return !value.get_array().empty();
    case json::kind::object:
      return !value.get_object().empty();
  }
  return false;
}

// With sorted keys, so that equal objects are equal texts. The parser has limited the depth.
json::value sorted(const json::value& value) {
  if (const json::array* list = value.if_array(); list != nullptr) {
    json::array out;
    for (const json::value& each : *list) {
      out.push_back(sorted(each));
    }
    return out;
  }
  const json::object* object = value.if_object();
  if (object == nullptr) {
    return value;
  }
  std::vector<std::pair<json::string_view, const json::value*>> members;
  for (const auto& member : *object) {
    members.emplace_back(member.key(), &member.value());
  }
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  json::object out;
  for (const auto& [key, member] : members) {
    out.emplace(key, sorted(*member));
  }
  return out;
}

// Reads keys of one object; the first that is missing or does not fit is kept as the failure.
class KeyReader {
 public:
  explicit KeyReader(const json::object& object) : object_(object) {}

  // Missing keys are errors, null is a value.
  const json::value& required(std::string_view key) {
    const json::value* value = find(key);
    if (value == nullptr) {
      refuse(fmt::format("{} is missing", key));
      return null_;
    }
    return *value;
  }

  std::uint32_t size(std::string_view key) {
    return static_cast<std::uint32_t>(
        whole(key, required(key), std::numeric_limits<std::uint32_t>::max()));
  }
  std::uint16_t port(std::string_view key) {
    return static_cast<std::uint16_t>(
        whole(key, required(key), std::numeric_limits<std::uint16_t>::max()));
  }
  std::optional<std::uint16_t> optional_port(std::string_view key) {
    const json::value* value = find(key);
    if (value == nullptr || value->is_null()) {
      return std::nullopt;
    }
    return static_cast<std::uint16_t>(
        whole(key, *value, std::numeric_limits<std::uint16_t>::max()));
  }
  std::int64_t any_int(std::string_view key) {
    const std::optional<std::int64_t> number = to_int(required(key));
    if (!number) {
      refuse(fmt::format("{} is no whole number", key));
    }
    return number.value_or(0);
  }
  std::string text(std::string_view key) {
    std::optional<std::string> text = text_or_null(key, required(key));
    if (!text) {
      refuse(fmt::format("{} is null", key));
    }
    return std::move(text).value_or("");
  }
  std::optional<std::string> nullable_text(std::string_view key) {
    return text_or_null(key, required(key));
  }
  std::optional<std::string> optional_text(std::string_view key) {
    const json::value* value = find(key);
    return value == nullptr ? std::nullopt : text_or_null(key, *value);
  }
  bool flag(std::string_view key) const {
    const json::value* value = find(key);
    return value != nullptr && to_bool(*value);
  }
  const json::value* find(std::string_view key) const {
    return object_.if_contains(json::string_view(key.data(), key.size()));
  }
  void refuse(std::string what) {
    if (!problem_) {
      problem_ = std::move(what);
    }
  }
  const std::optional<std::string>& problem() const { return problem_; }

 private:
  std::int64_t whole(std::string_view key, const json::value& value, std::int64_t most) {
    const std::optional<std::int64_t> number = to_int(value);
    if (!number || *number < 0 || *number > most) {
      refuse(fmt::format("{} is no whole number from 0 to {}", key, most));
      return 0;
    }
    return *number;
  }
  std::optional<std::string> text_or_null(std::string_view key, const json::value& value) {
    if (value.is_null()) {
      return std::nullopt;
    }
    const json::string* text = value.if_string();
    const auto is_control = [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    };
    if (text == nullptr || text->size() > kMaxTextBytes ||
        std::any_of(text->begin(), text->end(), is_control)) {
      refuse(fmt::format("{} is no text of at most {} bytes without control characters", key,
                         kMaxTextBytes));
      return std::nullopt;
    }
    return std::string(text->data(), text->size());
  }

  const json::object& object_;
  const json::value null_;
  std::optional<std::string> problem_;
};

template <typename T>
Result<T> finish(const KeyReader& in, T value) {
  if (in.problem()) {
    return malformed(*in.problem());
  }
  return value;
}

json::value text_or_null(const std::optional<std::string>& text) {
  return text ? json::value(*text) : json::value();
}

}  // namespace

Result<RankRow> parse_rank_row(std::string_view body) {
  const Result<json::object> object = parse_object(body);
  if (!object) {
    return tl::unexpected(object.error());
  }
  KeyReader in(*object);
  RankRow row;
  row.tp = {in.size("attn_tp_size"), in.size("attn_tp_rank")};
  row.cp = {in.size("attn_cp_size"), in.size("attn_cp_rank")};
  row.dp = {in.size("attn_dp_size"), in.size("attn_dp_rank")};
  row.pp = {in.size("pp_size"), in.size("pp_rank")};
  row.system_dp = {in.size("system_dp_size"), in.size("system_dp_rank")};
  row.ip = in.text("rank_ip");
  row.port = in.port("rank_port");
  row.page_tokens = in.size("page_size");
  row.kv_cache_dtype = in.nullable_text("kv_cache_dtype");
  row.kv_layout = in.optional_text("kv_layout");
  row.http_port = in.optional_port("prefill_http_port");
  if (const json::value* layout = in.find("dsv41_spec_layout");
      layout != nullptr && !layout->is_null()) {
    row.spec_layout = json::serialize(sorted(*layout));
  }
  if (const json::value* method = in.find("load_balance_method"); method != nullptr) {
    row.follows_room = *method == json::value("follow_bootstrap_room");
  }
  row.dsa_cache_layer_split = in.flag("enable_dsa_cache_layer_split");
  row.kv_cache_sharding = in.flag("enable_kv_cache_sharding");
  row.allocation_policy = in.optional_text("decode_allocation_policy").value_or("early");
  return finish(in, std::move(row));
}

std::string rank_row_json(const RankRow& row) {
  return json::serialize(json::object{
      {"attn_tp_size", row.tp.size},
      {"attn_tp_rank", row.tp.rank},
      {"attn_cp_size", row.cp.size},
      {"attn_cp_rank", row.cp.rank},
      {"attn_dp_size", row.dp.size},
      {"attn_dp_rank", row.dp.rank},
      {"pp_size", row.pp.size},
      {"pp_rank", row.pp.rank},
      {"system_dp_size", row.system_dp.size},
      {"system_dp_rank", row.system_dp.rank},
      {"rank_ip", row.ip},
      {"rank_port", row.port},
      {"page_size", row.page_tokens},
      {"kv_cache_dtype", text_or_null(row.kv_cache_dtype)},
      {"kv_layout", text_or_null(row.kv_layout)},
      {"dsv41_spec_layout", row.spec_layout ? json::parse(*row.spec_layout) : json::value()},
      {"load_balance_method", row.follows_room ? "follow_bootstrap_room" : "round_robin"},
      {"enable_dsa_cache_layer_split", row.dsa_cache_layer_split},
      {"enable_kv_cache_sharding", row.kv_cache_sharding},
      {"prefill_http_port", row.http_port ? json::value(*row.http_port) : json::value()},
      {"decode_allocation_policy", row.allocation_policy}});
}

Result<RoomRank> parse_room_rank(std::string_view body) {
  const Result<json::object> object = parse_object(body);
  if (!object) {
    return tl::unexpected(object.error());
  }
  KeyReader in(*object);
  const RoomRank room{in.any_int("bootstrap_room"), in.any_int("dp_rank")};
  return finish(in, room);
}

Result<std::vector<std::int64_t>> parse_rooms(std::string_view body) {
  const Result<json::object> object = parse_object(body);
  if (!object) {
    return tl::unexpected(object.error());
  }
  KeyReader in(*object);
  std::vector<std::int64_t> rooms;
  const json::array* list = in.required("bootstrap_rooms").if_array();
  if (list == nullptr) {
    in.refuse("bootstrap_rooms is no list");
    return finish(in, rooms);
  }
  rooms.reserve(list->size());
  for (const json::value& each : *list) {
    const std::optional<std::int64_t> room = to_int(each);
    if (!room) {
      in.refuse("bootstrap_rooms has an element that is no whole number");
      break;
    }
    rooms.push_back(*room);
  }
  return finish(in, std::move(rooms));
}

std::string rooms_json(const std::vector<std::int64_t>& rooms) {
  return json::serialize(
      json::object{{"bootstrap_rooms", json::array(rooms.begin(), rooms.end())}});
}

std::string topology_json(const Topology& topology) {
  json::object out{
      {"attn_tp_size", topology.tp_size},
      {"attn_cp_size", topology.cp_size},
      {"dp_size", topology.dp_size},
      {"pp_size", topology.pp_size},
      {"page_size", topology.page_tokens},
      {"kv_cache_dtype", text_or_null(topology.kv_cache_dtype)},
      {"follow_bootstrap_room", topology.follows_room},
      {"enable_dsa_cache_layer_split", topology.dsa_cache_layer_split},
      {"decode_allocation_policy", topology.allocation_policy},
      {"enable_kv_cache_sharding", topology.kv_cache_sharding},
      {"prefill_http_port", topology.http_port ? json::value(*topology.http_port) : json::value()},
      {"target_tp_rank", nullptr},
      {"target_tp_ranks", nullptr},
      {"target_cp_ranks", nullptr},
      {"target_pp_ranks", nullptr},
      {"required_dst_info_num", nullptr},
      {"required_prefill_response_num", nullptr}};
  if (topology.spec_layout) {
    out["dsv41_spec_layout"] = json::parse(*topology.spec_layout);
  }
  if (topology.kv_layout) {
    out["kv_layout"] = *topology.kv_layout;
  }
  return json::serialize(out);
}

Result<Topology> parse_topology(std::string_view body) {
  const Result<json::object> object = parse_object(body);
  if (!object) {
    return tl::unexpected(object.error());
  }
  KeyReader in(*object);
  Topology out;
  out.tp_size = in.size("attn_tp_size");
  out.cp_size = in.size("attn_cp_size");
  out.dp_size = in.size("dp_size");
  out.pp_size = in.size("pp_size");
  out.page_tokens = in.size("page_size");
  out.kv_cache_dtype = in.nullable_text("kv_cache_dtype");
  out.follows_room = to_bool(in.required("follow_bootstrap_room"));
  out.kv_layout = in.optional_text("kv_layout");
  out.http_port = in.optional_port("prefill_http_port");
  out.dsa_cache_layer_split = in.flag("enable_dsa_cache_layer_split");
  out.kv_cache_sharding = in.flag("enable_kv_cache_sharding");
  out.allocation_policy = in.optional_text("decode_allocation_policy").value_or("early");
  return finish(in, std::move(out));
}

std::string address_json(const RankAddress& address) {
  return json::serialize(json::object{{"rank_ip", address.ip}, {"rank_port", address.port}});
}

Result<RankAddress> parse_address(std::string_view body) {
  const Result<json::object> object = parse_object(body);
  if (!object) {
    return tl::unexpected(object.error());
  }
  KeyReader in(*object);
  RankAddress address{in.text("rank_ip"), in.port("rank_port")};
  return finish(in, std::move(address));
}

std::string room_ranks_json(const std::vector<RoomRank>& rooms) {
  json::object out;
  for (const RoomRank& room : rooms) {
    out[fmt::format("{}", room.room)] = room.dp_rank;
  }
  return json::serialize(out);
}

Result<std::vector<RoomRank>> parse_room_ranks(std::string_view body) {
  const Result<json::object> object = parse_object(body);
  if (!object) {
    return tl::unexpected(object.error());
  }
  std::vector<RoomRank> rooms;
  for (const auto& [key, value] : *object) {
    const std::optional<std::int64_t> room = to_int(json::value(key));
    const std::optional<std::int64_t> dp_rank = to_int(value);
    if (!room || !dp_rank) {
      return malformed("the answer is no object of rooms and DP ranks");
    }
    rooms.push_back({*room, *dp_rank});
  }
  return rooms;
}

}  // namespace kvferry::sglang
