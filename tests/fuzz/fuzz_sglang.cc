// A multipart message as a stranger may send it to one of the dialect's listeners. The first byte
// says which one; then come frames, each as a length of two bytes and its bytes (the last one may
// be shorter than it says). Whatever is read can be written, within the limits, and read again
// without a change; whatever is not has a reason and a text for a log.
#include <algorithm>
#include <variant>
#include <vector>

#include "dialect/sglang/codec.h"
#include "input.h"
#include "target.h"

namespace kvferry::fuzz {
namespace {

using sglang::FrameView;
using sglang::Message;

constexpr std::size_t kLongestText = 400;

std::vector<FrameView> frames_of(Input input) {
  std::vector<FrameView> frames;
  while (!input.is_empty()) {
    const std::size_t length = input.raw<std::uint16_t>();
    const std::span<const std::uint8_t> rest = input.rest();
    frames.push_back(rest.first(std::min(length, rest.size())));
    input = Input(rest.subspan(frames.back().size()));
  }
  return frames;
}

void check(const sglang::RankEndpoint& endpoint) {
  require(endpoint.port != 0 && !endpoint.ip.empty(), "an endpoint has an address and a port");
}

void check(const sglang::RoomTarget& target) {
  const sglang::CodecLimits limits;
  check(target.endpoint);
  require(target.pages.size() <= limits.max_pages, "pages are within their limit");
  require(target.decode_ranks >= 1, "somebody sends metadata");
  for (const PageIndex page : target.pages) {
    require(page.value() < 0x8000'0000U, "no page is negative");
  }
}

void check_values(const Message& message) {
  std::visit(
      [](const auto& body) {
        if constexpr (requires { body.room; }) {
          require(body.room.value() <= sglang::kMaxRoom, "a room is one that SGLang can have");
        }
        if constexpr (requires { body.target; }) {
          check(body.target);
        }
        if constexpr (requires { body.memory; }) {
          check(body.endpoint);
          require(body.tp_size >= 1 && body.dcp_size >= 1, "groups have members");
          const std::size_t each = body.memory.kv_item_bytes_of.size();
          require(each == 0 || each == body.memory.kv_pointers.size(), "one length each");
        }
      },
      message);
}

void check_round_trip(sglang::Listener listener, Message message) {
  if (auto* status = std::get_if<sglang::RoomStatus>(&message)) {
    require(status->status <= KvPoll::kSuccess, "a status is one of five");
    if (listener.flavour == sglang::Flavour::kMooncake) {
      status->reason.clear();  // has no frame there
    }
  }
  const auto again = decode(listener, encode(listener.flavour, message));
  require(again.has_value(), "what was read is written so that it can be read");
  require(*again == message, "a round trip changes nothing");
}

void run(std::span<const std::uint8_t> bytes) {
  Input input(bytes);
  const std::uint32_t which = input.below(6);
  const sglang::Listener listener{static_cast<sglang::Flavour>(which % 3),
                                  which < 3 ? Role::kPrefill : Role::kDecode};
  const std::vector<FrameView> frames = frames_of(input);
  const auto message = decode(listener, frames);
  if (!message) {
    const sglang::Malformed& problem = message.error();
    require(to_string(problem.reason) != "unknown", "every reason has a name");
    require(!problem.what.empty() && problem.what.size() <= kLongestText, "a text for one line");
    require(std::all_of(problem.what.begin(), problem.what.end(),
                        [](char c) { return c >= ' ' && c < 0x7F; }),
            "a peer's bytes do not reach a log as they are");
    return;
  }
  require(kind_name(*message) != "unknown", "every kind has a name");
  check_values(*message);
  check_round_trip(listener, *message);
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::run({data, size});
  return 0;
}
