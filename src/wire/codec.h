// Bytes <-> Frame. Pure. A frame that decodes has passed the FlatBuffers verifier and the checks
// that it lacks: alignment of the base, trailing bytes, tag NONE, lengths, ranges of enums, and the
// limits below; so the core never sees a value that its type does not allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvferry/status.h"
#include "wire/messages.h"

namespace kvferry::wire {

struct CodecLimits {
  std::size_t max_frame_bytes = 4U << 20;
  std::uint32_t max_messages = 4'096;
  std::uint32_t max_pages = 1U << 20;    // of a frame, after run lengths are expanded
  std::uint32_t max_regions = 4'096;     // of a frame
  std::uint32_t max_transports = 64;     // of a frame
  std::uint32_t max_text_bytes = 1'024;  // any string
  std::uint32_t max_blob_bytes = 4'096;
};

// Why a frame was dropped; the counter's label.
enum class MalformedReason : std::uint8_t {
  kTooLarge,
  kVerifier,
  kTrailingBytes,
  kEmpty,
  kNoneTag,
  kMissingField,
  kLimit,
  kBadEnum,
  kBadLength
};
std::string_view to_string(MalformedReason reason);

struct Malformed {
  MalformedReason reason;
  std::string what;
};

// Text longer than the default limit is cut between two characters, never refused. An Unsupported
// is always encoded as an answer.
std::vector<std::uint8_t> encode(const Frame& frame);
// Upper bound of what the message adds to a frame, in bytes; for coalescing. Page lists count at
// full length even where runs make them shorter: so a frame filled up to the bound never exceeds
// CodecLimits::max_pages at the peer.
std::size_t encoded_size_bound(const Message& message);
// Upper bound of a frame's bytes apart from its messages.
inline constexpr std::size_t kFrameOverheadBytes = 96;

// bytes need no alignment. Unknown kinds decode as Unsupported{tag, is_answer = false}, unknown
// failure codes as kUnspecified.
tl::expected<Frame, Malformed> decode(std::span<const std::uint8_t> bytes,
                                      const CodecLimits& limits = {});

}  // namespace kvferry::wire
