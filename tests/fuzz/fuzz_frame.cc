// A frame as it comes from the link. Whatever decodes must survive a round trip: encoded again it
// is within the announced bound and decodes to an equal frame, so that nothing that the core is
// given lies outside what the wire can say. Alignment changes nothing.
#include <variant>
#include <vector>

#include "base/failure_codes.h"
#include "target.h"
#include "wire/codec.h"

namespace kvferry::fuzz {
namespace {

// Only answers are encoded (wire/codec.h); a kind that this version lacks becomes one.
void answer_unsupported(wire::Frame& frame) {
  for (wire::Message& message : frame.messages) {
    if (auto* unsupported = std::get_if<wire::Unsupported>(&message)) {
      unsupported->is_answer = true;
    }
  }
}

void check(const Failure& failure) {
  const std::size_t longest = wire::CodecLimits{}.max_text_bytes;
  require(failure.where <= FailureWhere::kPeer, "a failure's place is one of three");
  require(failure_code_row(failure.code).code == failure.code, "a failure's code is known");
  require(failure.what.size() <= longest && failure.peer.size() <= longest, "texts are short");
}

void check(const wire::Introduction& self) {
  require(self.role <= Role::kDecode, "a role is one of two");
  require(dtype_bytes(self.layout.dtype) > 0, "a dtype has a size");
  for (const RegionShape& region : self.layout.regions) {
    require(region.kind <= RegionKind::kState && region.memory <= MemoryKind::kDevice,
            "a region's kind and memory are known");
  }
  for (const wire::TransportOffer& offer : self.transports) {
    require(offer.blob.size() <= wire::CodecLimits{}.max_blob_bytes, "blobs are short");
  }
}

// Values that their types allow, and no more of them than the limits say.
void check_values(const wire::Frame& frame) {
  std::size_t pages = 0;
  for (const wire::Message& message : frame.messages) {
    std::visit(
        [](const auto& body) {
          if constexpr (requires { body.self; }) {
            check(body.self);
          }
          if constexpr (requires { body.cause; }) {
            check(body.cause);
          }
          if constexpr (requires { body.reason; }) {
            check(body.reason);
          }
        },
        message);
    if (const auto* grant = std::get_if<wire::Grant>(&message)) {
      pages += grant->pages.size() + grant->state_slots.size();
      require(-1 <= grant->aux_slot && grant->aux_slot < std::int64_t{1} << 32,
              "an aux slot is an item number or none");
    }
  }
  require(pages <= wire::CodecLimits{}.max_pages, "pages are within the limit of a frame");
  require(frame.sequence <= ~std::uint64_t{0} - frame.messages.size(),
          "the last message has a number");
}

void check_round_trip(wire::Frame frame) {
  answer_unsupported(frame);
  const std::vector<std::uint8_t> encoded = wire::encode(frame);
  std::size_t bound = wire::kFrameOverheadBytes;
  for (const wire::Message& message : frame.messages) {
    bound += wire::encoded_size_bound(message);
    require(wire::kind_name(message) != "none", "every message has a kind");
  }
  require(encoded.size() <= bound, "a frame is no longer than its bound");
  const auto again = wire::decode(encoded);
  if (encoded.size() > wire::CodecLimits{}.max_frame_bytes) {
    // Tables that several messages share are written once for each.
    require(!again && again.error().reason == wire::MalformedReason::kTooLarge,
            "a frame over the limit is refused as too large");
    return;
  }
  require(again.has_value(), "what was decoded is encoded so that it decodes");
  require(*again == frame, "a round trip changes nothing");
}

void run(std::span<const std::uint8_t> bytes) {
  const auto frame = wire::decode(bytes);
  // One byte off: the decoder may rely on the alignment of nothing.
  std::vector<std::uint8_t> shifted(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  const auto unaligned = wire::decode(std::span(shifted).subspan(1));
  require(frame.has_value() == unaligned.has_value(), "alignment decides nothing");
  if (!frame) {
    require(frame.error().reason == unaligned.error().reason, "alignment changes no reason");
    require(wire::to_string(frame.error().reason) != "unknown", "every reason has a name");
    return;
  }
  require(*frame == *unaligned, "alignment changes no value");
  require(!frame->messages.empty(), "a frame has messages");
  check_values(*frame);
  check_round_trip(*frame);
}

}  // namespace
}  // namespace kvferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvferry::fuzz::run({data, size});
  return 0;
}
