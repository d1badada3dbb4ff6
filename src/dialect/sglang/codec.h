// Multipart messages of SGLang <-> values. Pure: no I/O, no clock, no global. Peers here are
// strangers (the protocol has no authentication), so whatever they send ends as a value or as a
// Malformed that is counted by its reason; nothing throws for it, and nothing is allocated by a
// number that was not compared with a limit and with the bytes that are there.
//
// Rules of reading, all SGLang's own: frames are found by position, frames beyond those known are
// ignored (its versions append), an empty frame means that the field is absent. Stricter than
// SGLang: numbers are plain decimal digits, no index is negative, lengths add up exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "dialect/sglang/messages.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

using Frame = std::vector<std::uint8_t>;
using Frames = std::vector<Frame>;
using FrameView = std::span<const std::uint8_t>;

// Most of them far above what an engine has; a message beyond is refused whole.
struct CodecLimits {
  std::size_t max_frames = 64;
  std::size_t max_frame_bytes = 4U << 20;    // of one frame
  std::size_t max_message_bytes = 8U << 20;  // of all frames together
  std::size_t max_pages = 1U << 20;          // of one list
  std::size_t max_buffers = 4'096;           // of one list of pointers, lengths or layers
  std::size_t max_components = 64;           // state components
  std::size_t max_state_indices = 1U << 20;  // of all components together
  std::size_t max_text_bytes = 1'024;        // sessions, agents, addresses
  std::size_t max_reason_bytes = 1'024;      // a longer reason is cut, not refused
  std::size_t max_blob_bytes = 1U << 20;     // NIXL agent metadata
  std::size_t max_aux_bytes = 1U << 20;      // data of one AUX_DATA
};

// Largest room that SGLang's router draws.
inline constexpr std::uint64_t kMaxRoom = std::numeric_limits<std::int64_t>::max();

// Why a message was dropped; the counter's label.
enum class MalformedReason : std::uint8_t {
  kNoFrames,
  kTooManyFrames,
  kTooLarge,  // a frame or the whole
  kForeign,   // frame 0 is no tag, guard or room of this listener
  kTooFewFrames,
  kMissing,  // an empty frame where a value must be
  kNotANumber,
  kOutOfRange,     // a number
  kBadLength,      // bytes that are no whole number of elements, or not as many as announced
  kBadList,        // a packed list whose header does not add up
  kTooMany,        // elements of a list
  kBadText,        // too long, or bytes that are not printable
  kContradiction,  // two frames that can't both be true
  kNotSpoken,      // a known kind of SGLang that this version does not read (Mori's registrations)
};
inline constexpr std::size_t kMalformedReasons =
    static_cast<std::size_t>(MalformedReason::kNotSpoken) + 1;
std::string_view to_string(MalformedReason reason);

struct Malformed {
  MalformedReason reason = MalformedReason::kForeign;
  // "mooncake registration, frame 8 (tp_size): expected a whole number from 1 to 65536, got 'x'".
  std::string what;
  std::int32_t frame = -1;  // position in the message as received; -1: the message as a whole
};
// kMalformed, at the peer.
Failure to_failure(const Malformed& malformed, std::string peer);

// Who reads: prefill's and decode's PULL sockets share no kind, and flavours read in other frames.
struct Listener {
  Flavour flavour = Flavour::kMooncake;
  Role role = Role::kPrefill;
};

// In which flavour a prefill rank should read a message: whatever else differs, NIXL's and Mori's
// registrations and metadata begin with a guard. Total: of what is no message, any.
Flavour flavour_at_prefill(const Frames& frames);

tl::expected<Message, Malformed> decode(Listener listener, std::span<const FrameView> frames,
                                        const CodecLimits& limits = {});
tl::expected<Message, Malformed> decode(Listener listener, const Frames& frames,
                                        const CodecLimits& limits = {});

// As SGLang 0.5.23 sends it in that flavour. Registrations and metadata know their flavour; for
// them the argument is not looked at. Decoding the frames gives an equal message, apart from the
// reason of a status, which Mooncake's three frames don't carry.
Frames encode(Flavour flavour, const Message& message);

// L(T): a list of lists in one frame, always little-endian: u32 count, count x u32 length in
// bytes, then the lists without gaps. No list at all is a frame without bytes.
Frame pack_lists(const PerComponent<std::uint32_t>& lists);
Frame pack_lists(const PerComponent<std::uint64_t>& lists);

}  // namespace kvferry::sglang
