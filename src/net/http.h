// Requests and responses as plain values, shared by server and client, so that Boost.Beast stays in
// two translation units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvferry::net {

struct HttpHeaders {
  std::vector<std::pair<std::string, std::string>> fields;
  // Case-insensitive; empty when absent.
  std::string_view get(std::string_view name) const;
  void set(std::string name, std::string value);
};

struct HttpRequest {
  std::string method = "GET";
  std::string target;  // path and query, as received
  HttpHeaders headers;
  std::string body;
  std::string remote;  // host:port of the client, on the server side

  std::string_view path() const;
  // Decoded value of a query parameter, empty when absent.
  std::string query(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;
  std::string body;
};

HttpResponse text_response(int status, std::string body, std::string content_type = "text/plain");
HttpResponse json_response(int status, std::string json);
// Body in OpenAI's shape: {"error":{"message","type","param":null,"code"}}. An empty code is null.
HttpResponse error_response(int status, std::string_view message, std::string_view code = {},
                            std::string_view type = "invalid_request_error");

}  // namespace kvferry::net
