#include "net/http_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kvferry::net {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool belongs_to_connection(std::string_view name) {
  constexpr std::string_view kNames[] = {"connection", "content-length",   "transfer-encoding",
                                         "keep-alive", "proxy-connection", "te",
                                         "trailer",    "upgrade",          "expect"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [name](std::string_view known) { return equal_ignoring_case(name, known); });
}

bool is_clean(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos;
}

void append_fields(std::string& out, const HttpHeaders& headers, bool with_host) {
  for (const auto& [name, value] : headers.fields) {
    if (name.empty() || belongs_to_connection(name) || !is_clean(name) || !is_clean(value) ||
        (!with_host && equal_ignoring_case(name, "host"))) {
      continue;
    }
    fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
  }
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

bool has_token(std::string_view list, std::string_view token) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    item.remove_prefix(std::min(item.find_first_not_of(" \t"), item.size()));
    item = item.substr(0, item.find_last_not_of(" \t") + 1);
    if (equal_ignoring_case(item, token)) {
      return true;
    }
  }
  return false;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

bool status_has_body(int status) { return status >= 200 && status != 204 && status != 304; }

std::string response_head(const HttpResponse& response, BodyFraming framing,
                          std::uint64_t body_bytes, bool keep_alive) {
  // The parser on the other side takes exactly three digits.
  const int status = response.status >= 100 && response.status <= 999 ? response.status : 500;
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  append_fields(out, response.headers, true);
  if (framing == BodyFraming::kLength) {
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", body_bytes);
  } else if (framing == BodyFraming::kChunked) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  out += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return out;
}

std::string request_head(const HttpRequest& request, std::string_view address) {
  const std::string_view target = request.target.empty() ? "/" : std::string_view(request.target);
  std::string out = fmt::format("{} {} HTTP/1.1\r\n", request.method, target);
  const std::string_view host = request.headers.get("Host");
  fmt::format_to(std::back_inserter(out), "Host: {}\r\n",
                 !host.empty() && is_clean(host) ? host : address);
  append_fields(out, request.headers, false);
  const bool may_have_body =
      request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
  if (!request.body.empty() || may_have_body) {
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", request.body.size());
  }
  out += "\r\n";
  return out;
}

void append_chunk(std::string& out, std::string_view data) {
  if (data.empty()) {
    return;  // an empty chunk would end the body
  }
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", data.size());
  out += data;
  out += "\r\n";
}

}  // namespace kvferry::net
