// Checked reading of a request body's fields, shared by the readers of OpenAI's and of SGLang's
// bodies. Each function throws Refused with the name of what is wrong; parse_request() catches it.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/request.h"

namespace kvferry::serve {

struct Refused {
  ApiError error;
};

[[noreturn]] void refuse(std::string_view param, std::string message, std::string code = {});
[[noreturn]] void wrong_type(std::string_view param, std::string_view wanted,
                             const boost::json::value& value);
// With this value the field would change the answer in a way that this server can't.
[[noreturn]] void refuse_unsupported(std::string_view param);

// "a string", "an array": for messages.
std::string_view kind_name(const boost::json::value& value);

std::string text_of(std::string_view param, const boost::json::value& value);
bool flag_of(std::string_view param, const boost::json::value& value);
double number_of(std::string_view param, const boost::json::value& value, double low, double high);
std::uint64_t integer_of(std::string_view param, const boost::json::value& value, std::uint64_t low,
                         std::uint64_t high);
// Any 64-bit integer; a negative one as its bit pattern.
std::uint64_t seed_of(std::string_view param, const boost::json::value& value);
std::vector<Token> tokens_of(std::string_view param, const boost::json::value& value);
// One stop string or an array of them, within this server's limits.
std::vector<std::string> stops_of(std::string_view param, const boost::json::value& value);

// The fields by which a router names a request's transfer.
class RoomReader {
 public:
  // False when the key is none of them.
  bool read(std::string_view key, const boost::json::value& value);
  // No room when no field was there. Without kvferry_binding the binding is derived.
  std::optional<RoomFields> finish() const;

 private:
  RoomFields room_;
  bool host_ = false;
  bool port_ = false;
  bool number_ = false;
  bool binding_ = false;
};

// A body of SGLang's /generate; generate_request.cc.
GenerationRequest read_generate(const boost::json::object& body);

}  // namespace kvferry::serve
