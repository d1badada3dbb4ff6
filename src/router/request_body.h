// What the router reads of a client's request and adds to it. The client's own text is passed on
// byte by byte: the added fields are put in front of its first one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvferry/ids.h"
#include "kvferry/status.h"
#include "net/http.h"

namespace kvferry::router {

// Names of one try of one request, told to both servers. A retry draws new ones (rule 8).
struct TransferNames {
  RoomId room;  // 63 bits, so that it is a JSON integer everywhere
  Binding binding;
  static TransferNames draw();
};

struct BootstrapAddress {
  std::string host;
  std::uint16_t port = 0;
};

// "host:port", also with "http://" in front and "[v6]:port". The failure names the text.
Result<BootstrapAddress> parse_address(std::string_view text);

// Fails (kInvalidArgument) unless the body is a JSON object without the fields that the router
// adds.
Status check_request_body(std::string_view body);

// body has passed check_request_body().
std::string add_transfer_fields(std::string_view body, const BootstrapAddress& bootstrap,
                                const TransferNames& names, std::string_view prefill_instance);

// {"error":{"message","type","param","code"}} as OpenAI's clients expect it.
std::string openai_error(int status, std::string_view message, std::string_view code);
net::HttpResponse error_response(int status, std::string_view message, std::string_view code);
net::HttpResponse error_response(const Failure& failure);

}  // namespace kvferry::router
