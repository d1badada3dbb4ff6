// JSON behind a plain header, so that Boost.JSON's cost is paid in one translation unit. Reading
// gives views into a parsed document; an absent key or a value of another kind reads as empty,
// since bodies of servers are peer input. Writing is text that is built in order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/status.h"

namespace kvferry::router {

// Valid as long as its document.
class JsonView {
 public:
  JsonView() = default;

  bool exists() const { return value_ != nullptr; }
  bool is_object() const;
  bool is_array() const;
  // Elements of an array or keys of an object; 0 for all else.
  std::size_t size() const;
  JsonView operator[](std::string_view key) const;
  JsonView at(std::size_t index) const;

  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;  // a number without fraction that fits
  std::optional<double> number() const;
  std::optional<std::string> text() const;

 private:
  friend class JsonDocument;
  explicit JsonView(const void* value) : value_(value) {}
  const void* value_ = nullptr;
};

class JsonDocument {
 public:
  // The failure (kInvalidArgument) says what is wrong and where: line, column and byte.
  static Result<JsonDocument> parse(std::string_view text);
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonView root() const;

 private:
  struct Content;
  explicit JsonDocument(std::unique_ptr<Content> content);
  std::unique_ptr<Content> content_;
};

// With quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_quote(std::string_view text);

class JsonObject {
 public:
  JsonObject& text(std::string_view key, std::string_view value);
  JsonObject& integer(std::string_view key, std::int64_t value);
  JsonObject& number(std::string_view key, double value);  // not finite: null
  JsonObject& boolean(std::string_view key, bool value);
  JsonObject& raw(std::string_view key, std::string_view json);
  std::string str() const { return "{" + fields_ + "}"; }

 private:
  void key(std::string_view name);
  std::string fields_;
};

std::string json_array(const std::vector<std::string>& elements);

}  // namespace kvferry::router
