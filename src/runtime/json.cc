#include "runtime/json.h"

#include <fmt/format.h>
#include <boost/json.hpp>

#include <algorithm>
#include <charconv>
#include <optional>

namespace kvferry::runtime {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxTextBytes = 256;
constexpr std::size_t kMaxKeyBytes = 40;
constexpr std::size_t kMaxSignatureBytes = 64;
constexpr std::uint32_t kMaxLeaseMs = 24U * 3'600'000U;

tl::unexpected<Failure> malformed(std::string what) {
  return fail(FailureCode::kMalformed, std::move(what));
}

Result<json::value> parse(std::string_view text) {
  json::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) {
    return malformed(fmt::format("not JSON: {}", error.message()));
  }
  return value;
}

json::string_view view(std::string_view text) { return {text.data(), text.size()}; }

json::object row_object(const core::RegistryRow& row) {
  return {{"role", view(to_string(row.role))},
          {"instance", row.instance},
          {"tp_rank", row.rank.tp_rank},
          {"tp_size", row.rank.tp_size},
          {"pp_rank", row.rank.pp_rank},
          {"pp_size", row.rank.pp_size},
          {"dp_rank", row.rank.dp_rank},
          {"dp_size", row.rank.dp_size},
          {"endpoint", row.endpoint},
          {"public_key", row.public_key},
          {"incarnation", row.incarnation.to_hex()},
          // As text: not every reader of JSON keeps 64 bits of a number.
          {"engine_epoch", fmt::format("{}", row.engine_epoch.value())},
          {"signature", row.signature}};
}

// Reads fields of one object; the first that is missing or does not fit is kept as the failure.
class FieldReader {
 public:
  explicit FieldReader(const json::object& object) : object_(object) {}

  std::string text(std::string_view name, std::size_t max_bytes, bool may_be_empty) {
    const json::value* value = object_.if_contains(view(name));
    const json::string* string = value == nullptr ? nullptr : value->if_string();
    if (string == nullptr) {
      refuse(fmt::format("{} is missing or no text", name));
      return {};
    }
    const bool controls = std::any_of(string->begin(), string->end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    });
    if (string->size() > max_bytes || controls || (string->empty() && !may_be_empty)) {
      refuse(fmt::format("{} is empty, longer than {} bytes or has control characters", name,
                         max_bytes));
      return {};
    }
    return std::string(string->data(), string->size());
  }

  std::uint32_t number(std::string_view name) {
    const json::value* value = object_.if_contains(view(name));
    json::error_code error;
    const auto number = value == nullptr ? 0 : value->to_number<std::uint32_t>(error);
    if (value == nullptr || error) {
      refuse(fmt::format("{} is missing or no whole number of 32 bits", name));
      return 0;
    }
    return number;
  }

  void refuse(std::string what) {
    if (!failure_) {
      failure_ = std::move(what);
    }
  }
  const std::optional<std::string>& failure() const { return failure_; }

 private:
  const json::object& object_;
  std::optional<std::string> failure_;
};

Result<core::RegistryRow> row_from(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) {
    return malformed("row is no object");
  }
  FieldReader fields(*object);
  core::RegistryRow row;
  const std::string role = fields.text("role", kMaxTextBytes, false);
  if (role == to_string(Role::kPrefill) || role == to_string(Role::kDecode)) {
    row.role = role == to_string(Role::kPrefill) ? Role::kPrefill : Role::kDecode;
  } else {
    fields.refuse("role is neither prefill nor decode");
  }
  row.instance = fields.text("instance", kMaxTextBytes, false);
  row.rank.tp_rank = fields.number("tp_rank");
  row.rank.tp_size = fields.number("tp_size");
  row.rank.pp_rank = fields.number("pp_rank");
  row.rank.pp_size = fields.number("pp_size");
  row.rank.dp_rank = fields.number("dp_rank");
  row.rank.dp_size = fields.number("dp_size");
  row.endpoint = fields.text("endpoint", kMaxTextBytes, false);
  row.public_key = fields.text("public_key", kMaxKeyBytes, true);
  if (!row.public_key.empty() && row.public_key.size() != kMaxKeyBytes) {
    fields.refuse("public_key is no Z85 key of 40 characters");
  }
  const auto incarnation = Incarnation::from_hex(fields.text("incarnation", 32, false));
  if (!incarnation) {
    fields.refuse("incarnation is not 32 hexadecimal digits");
  }
  row.incarnation = incarnation.value_or(Incarnation{});
  const std::string epoch = fields.text("engine_epoch", 20, false);
  std::uint64_t epoch_value = 0;
  const auto [stop, error] =
      std::from_chars(epoch.data(), epoch.data() + epoch.size(), epoch_value);
  if (error != std::errc{} || stop != epoch.data() + epoch.size()) {
    fields.refuse("engine_epoch is no whole number of 64 bits");
  }
  row.engine_epoch = EngineEpoch(epoch_value);
  row.signature = fields.text("signature", kMaxSignatureBytes, true);
  if (fields.failure()) {
    return malformed(fmt::format("row: {}", *fields.failure()));
  }
  return row;
}

// Peers' words may hold bytes that are no UTF-8, which JSON must not.
std::string clean(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  return text;
}

}  // namespace

std::string encode_registration(const Registration& registration) {
  return json::serialize(
      json::object{{"row", row_object(registration.row)}, {"lease_ms", registration.lease_ms}});
}

Result<Registration> decode_registration(std::string_view text) {
  Result<json::value> value = parse(text);
  if (!value) {
    return tl::unexpected(value.error());
  }
  const json::object* object = value->if_object();
  const json::value* row = object == nullptr ? nullptr : object->if_contains("row");
  if (row == nullptr) {
    return malformed("the body has no row");
  }
  Result<core::RegistryRow> parsed = row_from(*row);
  if (!parsed) {
    return tl::unexpected(parsed.error());
  }
  FieldReader fields(*object);
  const std::uint32_t lease_ms = fields.number("lease_ms");
  if (fields.failure() || lease_ms == 0 || lease_ms > kMaxLeaseMs) {
    return malformed(fmt::format("lease_ms is not a whole number from 1 to {}", kMaxLeaseMs));
  }
  return Registration{std::move(*parsed), lease_ms};
}

std::string encode_rows(std::span<const core::RegistryRow> rows) {
  json::array array;
  array.reserve(rows.size());
  for (const core::RegistryRow& row : rows) {
    array.emplace_back(row_object(row));
  }
  return json::serialize(json::object{{"rows", std::move(array)}});
}

Result<std::vector<core::RegistryRow>> decode_rows(std::string_view text, std::size_t& skipped) {
  skipped = 0;
  Result<json::value> value = parse(text);
  if (!value) {
    return tl::unexpected(value.error());
  }
  const json::object* object = value->if_object();
  const json::value* rows = object == nullptr ? nullptr : object->if_contains("rows");
  const json::array* array = rows == nullptr ? nullptr : rows->if_array();
  if (array == nullptr) {
    return malformed("the answer has no rows");
  }
  std::vector<core::RegistryRow> result;
  result.reserve(array->size());
  for (const json::value& row : *array) {
    // One bad row must not hide the others: it could have been put there for that.
    if (Result<core::RegistryRow> parsed = row_from(row); parsed) {
      result.push_back(std::move(*parsed));
    } else {
      ++skipped;
    }
  }
  return result;
}

std::string encode_error(const Failure& failure) {
  return json::serialize(json::object{
      {"error", json::object{{"message", failure.what}, {"code", view(to_string(failure.code))}}}});
}

std::string decode_error(std::string_view text) {
  const Result<json::value> value = parse(text);
  if (!value) {
    return {};
  }
  json::error_code error;
  const json::value* message = value->find_pointer("/error/message", error);
  const json::string* string = message == nullptr ? nullptr : message->if_string();
  return string == nullptr
             ? std::string()
             : std::string(string->data(), std::min<std::size_t>(string->size(), kMaxTextBytes));
}

std::string encode_status(const StatusReport& report) {
  const core::Snapshot& snapshot = *report.snapshot;
  json::array peers;
  for (const core::PeerView& peer : snapshot.peers) {
    peers.emplace_back(json::object{
        {"endpoint", clean(peer.endpoint)},
        {"instance", clean(peer.instance)},
        {"state", peer.state},
        {"ready", peer.ready},
        {"reason", clean(peer.reason)},
        {"epoch", fmt::format("{}", peer.epoch.value())},
        {"last_heard_ms", peer.last_heard_ms < 0 ? -1 : peer.last_heard_ms + report.age_ms},
        {"queued_messages", peer.queued_messages},
        {"unacknowledged", peer.unacknowledged}});
  }
  json::array rooms;
  for (const core::RoomView& room : snapshot.rooms) {
    rooms.emplace_back(json::object{{"owner", room.owner},
                                    {"room", fmt::format("{}", room.room.value())},
                                    {"binding", room.binding.to_hex()},
                                    {"attempt", room.attempt.value()},
                                    {"state", room.state},
                                    {"grant_state", room.grant_state},
                                    {"age_ms", room.age_ms + report.age_ms},
                                    {"pages", room.pages}});
  }
  json::array problems;
  for (const std::string& problem : report.readiness_problems) {
    problems.emplace_back(problem);
  }
  return json::serialize(json::object{{"role", view(report.role)},
                                      {"instance", view(report.instance)},
                                      {"endpoint", view(report.endpoint)},
                                      {"incarnation", report.incarnation.to_hex()},
                                      {"snapshot_age_ms", report.age_ms},
                                      {"rooms_live", report.rooms_live},
                                      {"open_handles", report.open_handles},
                                      {"grants", snapshot.grants},
                                      {"quarantined_pages", snapshot.quarantined_pages},
                                      {"tickets", snapshot.tickets},
                                      {"tombstones", snapshot.tombstones},
                                      {"room_count", snapshot.room_count},
                                      {"rooms_shown", snapshot.rooms.size()},
                                      {"readiness_problems", std::move(problems)},
                                      {"peers", std::move(peers)},
                                      {"rooms", std::move(rooms)}});
}

}  // namespace kvferry::runtime
