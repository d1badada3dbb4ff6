#include "wire/messages.h"

namespace kvferry::wire {
namespace {

// In the order of the variant.
constexpr std::array<std::string_view, std::variant_size_v<Message>> kKindNames{
    "hello",   "hello_reply",   "hello_confirm", "hello_confirmed", "hello_refused", "resume",
    "resumed", "session_ended", "grant",         "progress",        "done",          "consumed",
    "abort",   "drained",       "failed",        "fenced",          "stale",         "heartbeat",
    "ack",     "unsupported",
};

}  // namespace

std::string_view kind_name(const Message& message) {
  return message.valueless_by_exception() ? "none" : kKindNames[message.index()];
}

std::uint8_t kind_tag(const Message& message) {
  return static_cast<std::uint8_t>(message.index() + 1);
}

}  // namespace kvferry::wire
