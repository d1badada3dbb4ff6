// HTTP/1.1 heads as text, shared by server and client. Beast parses what comes; what goes out is
// simple enough to be written here, outside the two units that are slow to compile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "net/http.h"

namespace kvferry::net {

bool equal_ignoring_case(std::string_view a, std::string_view b);
// Whether a comma-separated field value holds the token, in any case.
bool has_token(std::string_view list, std::string_view token);
std::string json_quoted(std::string_view text);
std::string_view reason_phrase(int status);

// 1xx, 204 and 304 have no body and no length.
bool status_has_body(int status);

enum class BodyFraming : std::uint8_t { kLength, kChunked, kUntilClose, kNone };

// Fields that belong to one connection (Connection, Content-Length, Transfer-Encoding and their
// kin) are written by these two and dropped from headers, so that a proxy may pass a message on as
// it came. So are fields with line breaks in them.
std::string response_head(const HttpResponse& response, BodyFraming framing,
                          std::uint64_t body_bytes, bool keep_alive);
std::string request_head(const HttpRequest& request, std::string_view address);

// One chunk of a chunked body.
void append_chunk(std::string& out, std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace kvferry::net
