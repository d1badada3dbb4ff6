#include "net/http.h"

#include <fmt/format.h>

#include <algorithm>

#include "net/http_text.h"

namespace kvferry::net {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char folded = static_cast<char>(c | 0x20);
  return folded >= 'a' && folded <= 'f' ? folded - 'a' + 10 : -1;
}

// As in forms: %XX and plus for a space. Empty when a percent sign is not followed by two digits.
std::string query_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] != '%') {
      out += text[i];
    } else {
      const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
      if (high < 0 || low < 0) {
        return {};
      }
      out += static_cast<char>(high * 16 + low);
      i += 2;
    }
  }
  return out;
}

}  // namespace

std::string_view HttpHeaders::get(std::string_view name) const {
  for (const auto& [field, value] : fields) {
    if (equal_ignoring_case(field, name)) {
      return value;
    }
  }
  return {};
}

void HttpHeaders::set(std::string name, std::string value) {
  for (auto& [field, old] : fields) {
    if (equal_ignoring_case(field, name)) {
      old = std::move(value);
      return;
    }
  }
  fields.emplace_back(std::move(name), std::move(value));
}

std::string_view HttpRequest::path() const {
  std::string_view text = target;
  // A client that believes to talk to a proxy sends the whole URL.
  if (!text.starts_with('/')) {
    const std::size_t scheme = text.find("://");
    if (scheme != std::string_view::npos) {
      const std::size_t slash = text.find('/', scheme + 3);
      text = slash == std::string_view::npos ? std::string_view("/") : text.substr(slash);
    }
  }
  return text.substr(0, text.find_first_of("?#"));
}

std::string HttpRequest::query(std::string_view name) const {
  std::string_view text = target;
  const std::size_t question = text.find('?');
  if (question == std::string_view::npos) {
    return {};
  }
  text.remove_prefix(question + 1);
  text = text.substr(0, text.find('#'));
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(entry.size() + 1, text.size()));
    const std::size_t equals = std::min(entry.find('='), entry.size());
    if (query_decoded(entry.substr(0, equals)) == name) {
      return query_decoded(entry.substr(std::min(equals + 1, entry.size())));
    }
  }
  return {};
}

HttpResponse text_response(int status, std::string body, std::string content_type) {
  HttpResponse response;
  response.status = status;
  response.headers.fields.emplace_back("Content-Type", std::move(content_type));
  response.body = std::move(body);
  return response;
}

HttpResponse json_response(int status, std::string json) {
  return text_response(status, std::move(json), "application/json");
}

HttpResponse error_response(int status, std::string_view message, std::string_view code,
                            std::string_view type) {
  return json_response(
      status, fmt::format(R"({{"error":{{"message":{},"type":{},"param":null,"code":{}}}}})",
                          json_quoted(message), json_quoted(type),
                          code.empty() ? std::string("null") : json_quoted(code)));
}

}  // namespace kvferry::net
