#include "router/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <utility>

namespace kvferry::router {
namespace {

namespace json = boost::json;

const json::value* as_value(const void* value) { return static_cast<const json::value*>(value); }

// Length of the valid UTF-8 character at the start of text; 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i) {
    return i < text.size() && (byte(i) & 0xC0U) == 0x80U;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!continues(1) || !continues(2)) return 0;
    const bool overlong = first == 0xE0 && byte(1) < 0xA0;
    const bool surrogate = first == 0xED && byte(1) >= 0xA0;
    return overlong || surrogate ? 0 : 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!continues(1) || !continues(2) || !continues(3)) return 0;
    const bool overlong = first == 0xF0 && byte(1) < 0x90;
    const bool beyond = first == 0xF4 && byte(1) >= 0x90;
    return overlong || beyond ? 0 : 4;
  }
  return 0;
}

std::string position(std::string_view text, std::size_t at) {
  at = std::min(at, text.size());
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return fmt::format("line {}, column {} (byte {})", line, column, at);
}

}  // namespace

struct JsonDocument::Content {
  json::value value;
};

bool JsonView::is_object() const { return value_ != nullptr && as_value(value_)->is_object(); }
bool JsonView::is_array() const { return value_ != nullptr && as_value(value_)->is_array(); }

std::size_t JsonView::size() const {
  if (is_object()) return as_value(value_)->get_object().size();
  if (is_array()) return as_value(value_)->get_array().size();
  return 0;
}

JsonView JsonView::operator[](std::string_view key) const {
  if (!is_object()) return {};
  return JsonView(as_value(value_)->get_object().if_contains({key.data(), key.size()}));
}

JsonView JsonView::at(std::size_t index) const {
  if (!is_array()) return {};
  return JsonView(as_value(value_)->get_array().if_contains(index));
}

std::optional<bool> JsonView::boolean() const {
  if (value_ == nullptr || !as_value(value_)->is_bool()) return std::nullopt;
  return as_value(value_)->get_bool();
}

std::optional<std::int64_t> JsonView::integer() const {
  if (value_ == nullptr) return std::nullopt;
  json::error_code error;
  const auto number = as_value(value_)->to_number<std::int64_t>(error);
  if (error) return std::nullopt;
  return number;
}

std::optional<double> JsonView::number() const {
  if (value_ == nullptr) return std::nullopt;
  json::error_code error;
  const auto number = as_value(value_)->to_number<double>(error);
  if (error) return std::nullopt;
  return number;
}

std::optional<std::string> JsonView::text() const {
  if (value_ == nullptr || !as_value(value_)->is_string()) return std::nullopt;
  const json::string& text = as_value(value_)->get_string();
  return std::string(text.data(), text.size());
}

JsonDocument::JsonDocument(std::unique_ptr<Content> content) : content_(std::move(content)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(std::string_view text) {
  json::parser parser;
  json::error_code error;
  const std::size_t consumed = parser.write_some(text.data(), text.size(), error);
  if (!error && consumed < text.size()) {
    return fail(FailureCode::kInvalidArgument,
                "not valid JSON: extra text after the value at " + position(text, consumed));
  }
  if (error) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("not valid JSON: {} at {}", error.message(), position(text, consumed)));
  }
  return JsonDocument(std::make_unique<Content>(Content{parser.release()}));
}

JsonView JsonDocument::root() const { return JsonView(&content_->value); }

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const char c = text.front();
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out + "\"";
}

void JsonObject::key(std::string_view name) {
  if (!fields_.empty()) fields_ += ',';
  fields_ += json_quote(name);
  fields_ += ':';
}

JsonObject& JsonObject::text(std::string_view name, std::string_view value) {
  key(name);
  fields_ += json_quote(value);
  return *this;
}

JsonObject& JsonObject::integer(std::string_view name, std::int64_t value) {
  key(name);
  fields_ += std::to_string(value);
  return *this;
}

JsonObject& JsonObject::number(std::string_view name, double value) {
  key(name);
  fields_ += std::isfinite(value) ? fmt::format("{}", value) : "null";
  return *this;
}

JsonObject& JsonObject::boolean(std::string_view name, bool value) {
  key(name);
  fields_ += value ? "true" : "false";
  return *this;
}

JsonObject& JsonObject::raw(std::string_view name, std::string_view json) {
  key(name);
  fields_ += json;
  return *this;
}

std::string json_array(const std::vector<std::string>& elements) {
  std::string out = "[";
  for (const std::string& element : elements) {
    if (out.size() > 1) out += ',';
    out += element;
  }
  return out + "]";
}

}  // namespace kvferry::router
