// What arrives at a listener -> Message. Sizes first, then frame 0 says the kind, then the fields.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "dialect/sglang/codec.h"
#include "dialect/sglang/frame_reader.h"

namespace kvferry::sglang {
namespace {

using Decoded = tl::expected<Message, Malformed>;
using Input = std::span<const FrameView>;

constexpr std::int64_t kMaxRanks = 65'536;
constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();
constexpr NumberRange kRank{0, kMaxRanks - 1};
// A number made of TP, PP and CP ranks; far beyond any engine, yet not negative.
constexpr NumberRange kAnyRank{0, std::numeric_limits<std::int32_t>::max()};
constexpr NumberRange kGroup{1, kMaxRanks};
constexpr NumberRange kBytes{0, kMaxNumber};
constexpr NumberRange kIndex{0, std::numeric_limits<std::int32_t>::max()};
constexpr NumberRange kAnyNumber{0, kMaxNumber};

std::uint32_t to_u32(std::int64_t value) { return static_cast<std::uint32_t>(value); }
std::uint64_t to_u64(std::int64_t value) { return static_cast<std::uint64_t>(value); }

template <typename To>
std::optional<To> as(std::optional<std::int64_t> value) {
  return value ? std::optional(static_cast<To>(*value)) : std::nullopt;
}

Decoded finish(FrameReader& reader, Message message) {
  if (reader.failed()) {
    return tl::unexpected(reader.take_error());
  }
  return message;
}

// A list that has one element for each KV buffer, or none at all.
template <typename T>
void expect_one_each(FrameReader& reader, const std::vector<T>& list, std::size_t buffers,
                     std::size_t at, std::string_view field) {
  if (!list.empty() && list.size() != buffers) {
    reader.fail(
        MalformedReason::kContradiction, at, field,
        fmt::format("expected one for each of {} KV buffers, got {}", buffers, list.size()));
  }
}

// A size without a base says nothing.
void read_ring(FrameReader& in, StagingRing& ring) {
  ring.pointer = in.pointer(14);
  const std::int64_t bytes = in.optional_number(15, "staging bytes", kBytes).value_or(0);
  ring.bytes = ring.pointer == 0 ? 0 : to_u64(bytes);
}

// --- registrations: frames 0..19 of Mooncake, payload 0..23 of NIXL ---

Decoded mooncake_registration(Input frames, const CodecLimits& limits) {
  FrameReader in("mooncake-registration", frames, 0, 10, limits);
  MooncakeRegistration out;
  out.endpoint = in.endpoint(1);
  out.session = in.text(3, "session");
  DecodeMemory& memory = out.memory;
  memory.kv_pointers = in.u64_list(4, "kv pointers");
  memory.aux_pointers = in.u64_list(5, "aux pointers");
  memory.state_pointers = in.u64_lists(6, "state pointers", limits.max_buffers);
  out.tp_rank = to_u32(in.number(7, "tp_rank", kRank));
  out.tp_size = to_u32(in.number(8, "tp_size", kGroup));
  memory.kv_item_bytes = to_u64(in.number(9, "kv item bytes", kBytes));
  memory.state_item_bytes = in.u32_lists(10, "state item bytes", limits.max_buffers);
  memory.state_dims = in.u32_lists(11, "state dims", limits.max_buffers);
  memory.kv_layers = in.u32_list(12, "kv layers");
  memory.state_layers = in.u32_lists(13, "state layers", limits.max_buffers);
  read_ring(in, memory.staging);
  out.dcp_size = to_u32(in.optional_number(16, "dcp_size", kGroup).value_or(1));
  out.dcp_rank = to_u32(in.optional_number(17, "dcp_rank", kRank).value_or(0));
  memory.staging.slot_layers = in.u64_list(18, "staging slot layers");
  memory.kv_item_bytes_of = in.u64_list(19, "kv item bytes of each");
  expect_one_each(in, memory.kv_item_bytes_of, memory.kv_pointers.size(), 19,
                  "kv item bytes of each");
  return finish(in, std::move(out));
}

std::vector<NixlMemory> memory_kinds(FrameReader& in, std::size_t at, std::size_t most) {
  std::vector<NixlMemory> kinds;
  std::string_view rest = in.characters(at);
  while (!rest.empty() && !in.failed()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, comma);
    if ((name != "VRAM" && name != "DRAM") || kinds.size() == most || comma + 1 == rest.size()) {
      in.fail(MalformedReason::kBadText, at, "kv memory kinds",
              fmt::format("expected at most {} of VRAM and DRAM between commas", most));
      break;
    }
    kinds.push_back(name == "VRAM" ? NixlMemory::kVram : NixlMemory::kDram);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return kinds;
}

Decoded nixl_registration(Input frames, const CodecLimits& limits) {
  FrameReader in("nixl-registration", frames, 1, 12, limits);
  NixlRegistration out;
  out.endpoint = in.endpoint(1);
  out.agent = in.text(3, "agent");
  out.agent_metadata = in.blob(4, "agent metadata", limits.max_blob_bytes);
  DecodeMemory& memory = out.memory;
  memory.kv_pointers = in.u64_list(5, "kv pointers");
  memory.aux_pointers = in.u64_list(6, "aux pointers");
  memory.state_pointers = in.u64_lists(7, "state pointers", limits.max_buffers);
  out.gpu = to_u32(in.number(8, "gpu", kRank));
  out.tp_size = to_u32(in.number(9, "tp_size", kGroup));
  out.tp_rank = to_u32(in.number(10, "tp_rank", kRank));
  memory.kv_item_bytes = to_u64(in.number(11, "kv item bytes", kBytes));
  memory.state_item_bytes = in.u32_lists(12, "state item bytes", limits.max_buffers);
  memory.state_dims = in.u32_lists(13, "state dims", limits.max_buffers);
  read_ring(in, memory.staging);
  out.kv_slots = as<std::uint64_t>(in.optional_number(16, "kv slots", kAnyNumber));
  out.kv_memory_kinds = memory_kinds(in, 17, limits.max_buffers);
  expect_one_each(in, out.kv_memory_kinds, memory.kv_pointers.size(), 17, "kv memory kinds");
  memory.kv_item_bytes_of = in.u64_list(18, "kv item bytes of each");
  expect_one_each(in, memory.kv_item_bytes_of, memory.kv_pointers.size(), 18,
                  "kv item bytes of each");
  memory.state_layers = in.u32_lists(19, "state layers", limits.max_buffers);
  memory.kv_layers = in.u32_list(20, "kv layers");
  out.dcp_size = to_u32(in.optional_number(21, "dcp_size", kGroup).value_or(1));
  out.dcp_rank = to_u32(in.optional_number(22, "dcp_rank", kRank).value_or(0));
  out.state_bytes = in.u64_lists(23, "state bytes", limits.max_buffers);
  return finish(in, std::move(out));
}

// --- metadata ---

Decoded mooncake_metadata(Input frames, const CodecLimits& limits) {
  FrameReader in("mooncake-metadata", frames, 0, 8, limits);
  MooncakeMetadata out;
  out.target.room = in.room(0);
  out.target.endpoint = in.endpoint(1);
  out.session = in.text(3, "session");
  out.target.pages = in.pages(4, "pages");
  out.aux_index = as<std::uint32_t>(in.optional_number(5, "aux index", kIndex));
  if (!out.target.pages.empty() && !out.aux_index) {
    in.fail(MalformedReason::kContradiction, 5, "aux index",
            "expected an aux index beside pages, got none");
  }
  // SGLang does not look at the state of a dummy.
  if (!out.is_dummy()) {
    out.target.state_indices = in.index_lists(6, "state indices");
    out.device_pages = in.pages(9, "device pages");
  }
  out.target.decode_ranks = to_u32(in.number(7, "decode ranks", kGroup));
  out.target.prefix_tokens = to_u64(in.optional_number(8, "prefix tokens", kAnyNumber).value_or(0));
  return finish(in, std::move(out));
}

Decoded nixl_metadata(Input frames, const CodecLimits& limits) {
  FrameReader in("nixl-metadata", frames, 1, 7, limits);
  NixlMetadata out;
  out.target.room = in.room(0);
  out.target.endpoint = in.endpoint(1);
  out.agent = in.text(3, "agent");
  out.target.pages = in.pages(4, "pages");
  out.aux_index = to_u32(in.number(5, "aux index", kIndex));
  out.target.decode_ranks = to_u32(in.number(6, "decode ranks", kGroup));
  out.target.state_indices = in.index_lists(7, "state indices");
  out.target.prefix_tokens = to_u64(in.optional_number(8, "prefix tokens", kAnyNumber).value_or(0));
  const bool looks_dummy = out.target.pages.empty() && out.target.prefix_tokens == 0;
  out.is_dummy = in.optional_number(9, "is_dummy", {0, 1}).value_or(looks_dummy ? 1 : 0) == 1;
  return finish(in, std::move(out));
}

// --- the rest: frame 0 is a tag (or a guard), fields follow ---

Decoded room_status(Input frames, std::size_t skipped, const CodecLimits& limits) {
  FrameReader in("status", frames, skipped, 3, limits);
  RoomStatus out;
  out.room = in.room(0);
  const auto most = static_cast<std::int64_t>(KvPoll::kSuccess);
  out.status = static_cast<KvPoll>(in.number(1, "status", {0, most}));
  out.prefill_rank = to_u32(in.number(2, "prefill_rank", kAnyRank));
  out.reason = in.reason(3);
  return finish(in, std::move(out));
}

Decoded abort_room(Input frames, const CodecLimits& limits) {
  FrameReader in("abort", frames, 0, 2, limits);
  AbortRoom out;
  out.room = in.room(1);
  if (in.size() >= 4) {
    out.endpoint = in.endpoint(2);
    out.generation = as<std::uint64_t>(in.optional_number(4, "generation", kAnyNumber));
  }
  return finish(in, std::move(out));
}

Decoded abort_ack(Input frames, const CodecLimits& limits) {
  FrameReader in("abort-ack", frames, 0, 2, limits);
  AbortAck out;
  out.room = in.room(1);
  out.prefill_rank = as<std::uint32_t>(in.optional_number(2, "prefill_rank", kAnyRank));
  if (out.prefill_rank) {
    out.generation = as<std::uint64_t>(in.optional_number(3, "generation", kAnyNumber));
  }
  return finish(in, out);
}

// The length is a field of four bytes, most significant first: alone in the protocol.
Decoded aux_data(Input frames, const CodecLimits& limits) {
  FrameReader in("aux-data", frames, 0, 6, limits);
  AuxData out;
  out.room = in.room(1);
  out.buffer = to_u32(in.number(2, "buffer", kIndex));
  out.aux_index = to_u32(in.number(3, "aux index", kIndex));
  const std::string_view length = in.characters(4);
  if (length.size() != 4) {
    in.fail(MalformedReason::kBadLength, 4, "length",
            fmt::format("expected 4 bytes, got {}", length.size()));
  }
  out.bytes = in.blob(5, "data", limits.max_aux_bytes);
  std::uint32_t announced = 0;
  for (const char byte : length) {
    announced = announced << 8U | static_cast<std::uint8_t>(byte);
  }
  if (!in.failed() && announced != out.bytes.size()) {
    in.fail(MalformedReason::kBadLength, 5, "data",
            fmt::format("expected the {} bytes announced, got {}", announced, out.bytes.size()));
  }
  return finish(in, std::move(out));
}

Decoded chunk_ready(Input frames, const CodecLimits& limits) {
  FrameReader in("chunk-ready", frames, 0, 6, limits);
  ChunkReady out;
  out.room = in.room(1);
  out.chunk = to_u32(in.number(2, "chunk", kIndex));
  out.first_page = to_u32(in.number(3, "first page", kIndex));
  out.page_count = to_u32(in.number(4, "page count", kIndex));
  out.writer = in.text(5, "writer");
  out.prefill_rank = as<std::uint32_t>(in.optional_number(6, "prefill_rank", kAnyRank));
  return finish(in, std::move(out));
}

Decoded staging_request(Input frames, const CodecLimits& limits) {
  FrameReader in("staging-req", frames, 0, 5, limits);
  StagingRequest out;
  out.room = in.room(1);
  out.chunk = to_u32(in.number(2, "chunk", kIndex));
  out.page_count = to_u32(in.number(3, "page count", kIndex));
  out.session = in.text(4, "session");
  out.pp_rank = as<std::uint32_t>(in.optional_number(5, "pp_rank", kRank));
  return finish(in, std::move(out));
}

Decoded staging_response(Input frames, const CodecLimits& limits) {
  FrameReader in("staging-rsp", frames, 0, 7, limits);
  StagingResponse out;
  out.room = in.room(1);
  out.chunk = to_u32(in.number(2, "chunk", kIndex));
  out.offset = in.number(3, "offset", {StagingResponse::kOversized, kMaxNumber});
  out.round = in.number(4, "round", kAnyNumber);
  out.end = in.number(5, "end", {-1, kMaxNumber});
  out.session = in.text(6, "session");
  return finish(in, std::move(out));
}

Decoded watermark(Input frames, const CodecLimits& limits) {
  FrameReader in("watermark", frames, 0, 3, limits);
  Watermark out;
  out.round = in.number(1, "round", kAnyNumber);
  out.tail = in.number(2, "tail", kAnyNumber);
  out.session = in.optional_text(3, "session");
  return finish(in, std::move(out));
}

Decoded await_prefill(Input frames, const CodecLimits& limits) {
  FrameReader in("bootstrap", frames, 0, 4, limits);
  AwaitPrefill out;
  out.room = in.room(1);
  out.endpoint = in.endpoint(2);
  return finish(in, std::move(out));
}

// --- which kind ---

Decoded malformed(MalformedReason reason, std::string what, std::int32_t frame = -1) {
  return tl::unexpected(Malformed{reason, std::move(what), frame});
}

std::string_view as_text(FrameView frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

bool looks_like_number(std::string_view text) {
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  return text.size() > sign && std::all_of(text.begin() + static_cast<std::ptrdiff_t>(sign),
                                           text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Decoded foreign(Listener listener, FrameView first) {
  return malformed(MalformedReason::kForeign,
                   fmt::format("frame 0: {} is no tag, guard or room that a {} {} listens for",
                               quoted(first), to_string(listener.flavour),
                               listener.role == Role::kPrefill ? "prefill" : "decode"),
                   0);
}

// Frame 0 behind a guard, if the flavour has one.
std::string_view room_field(Input frames, std::size_t skipped) {
  return frames.size() > skipped ? as_text(frames[skipped]) : std::string_view();
}

Decoded decode_at_prefill(Listener listener, Input frames, const CodecLimits& limits) {
  const std::string_view first = as_text(frames[0]);
  const bool stages = listener.flavour != Flavour::kMori;
  if (first == "ABORT") {
    return abort_room(frames, limits);
  }
  if (stages && first == "WATERMARK") {
    return watermark(frames, limits);
  }
  if (stages && first == "STAGING_RSP") {
    return staging_response(frames, limits);
  }
  switch (listener.flavour) {
    case Flavour::kMooncake:
      if (first == "BOOTSTRAP") {
        return await_prefill(frames, limits);
      }
      if (first == kNoRoom) {
        return mooncake_registration(frames, limits);
      }
      if (looks_like_number(first)) {
        return mooncake_metadata(frames, limits);
      }
      break;
    case Flavour::kNixl:
      if (first == kNixlGuard) {
        return room_field(frames, 1) == kNoRoom ? nixl_registration(frames, limits)
                                                : nixl_metadata(frames, limits);
      }
      break;
    case Flavour::kMori:
      if (first == kMoriGuard) {
        return malformed(MalformedReason::kNotSpoken,
                         "registrations and metadata of Mori's flavour are not read: start both "
                         "servers with mooncake or nixl",
                         0);
      }
      break;
  }
  return foreign(listener, frames[0]);
}

Decoded decode_at_decode(Listener listener, Input frames, const CodecLimits& limits) {
  const std::string_view first = as_text(frames[0]);
  const bool stages = listener.flavour != Flavour::kMori;
  if (first == "ABORT_ACK") {
    return abort_ack(frames, limits);
  }
  if (listener.flavour != Flavour::kNixl && first == "AUX_DATA") {
    return aux_data(frames, limits);
  }
  if (stages && first == "CHUNK_READY") {
    return chunk_ready(frames, limits);
  }
  if (stages && first == "STAGING_REQ") {
    return staging_request(frames, limits);
  }
  const bool untagged = listener.flavour == Flavour::kMooncake && looks_like_number(first);
  const bool tagged = (listener.flavour == Flavour::kNixl && first == "KV_STATUS") ||
                      (listener.flavour == Flavour::kMori && first == kMoriGuard);
  if (untagged || tagged) {
    return room_status(frames, tagged ? 1 : 0, limits);
  }
  return foreign(listener, frames[0]);
}

}  // namespace

Flavour flavour_at_prefill(const Frames& frames) {
  const std::string_view first = frames.empty() ? std::string_view() : as_text(frames.front());
  return first == kNixlGuard   ? Flavour::kNixl
         : first == kMoriGuard ? Flavour::kMori
                               : Flavour::kMooncake;
}

tl::expected<Message, Malformed> decode(Listener listener, std::span<const FrameView> frames,
                                        const CodecLimits& limits) {
  if (frames.empty()) {
    return malformed(MalformedReason::kNoFrames, "a message without frames");
  }
  if (frames.size() > limits.max_frames) {
    return malformed(
        MalformedReason::kTooManyFrames,
        fmt::format("expected at most {} frames, got {}", limits.max_frames, frames.size()));
  }
  std::size_t left = limits.max_message_bytes;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (frames[i].size() > std::min(left, limits.max_frame_bytes)) {
      return malformed(
          MalformedReason::kTooLarge,
          fmt::format("frame {}: expected at most {} bytes in a frame and {} in all, "
                      "got {}",
                      i, limits.max_frame_bytes, limits.max_message_bytes, frames[i].size()),
          static_cast<std::int32_t>(i));
    }
    left -= frames[i].size();
  }
  return listener.role == Role::kPrefill ? decode_at_prefill(listener, frames, limits)
                                         : decode_at_decode(listener, frames, limits);
}

tl::expected<Message, Malformed> decode(Listener listener, const Frames& frames,
                                        const CodecLimits& limits) {
  const std::vector<FrameView> views(frames.begin(), frames.end());
  return decode(listener, views, limits);
}

std::string_view to_string(MalformedReason reason) {
  static constexpr std::array<std::string_view, kMalformedReasons> kNames = {
      "no-frames",     "too-many-frames", "too-large", "foreign", "too-few-frames", "missing",
      "not-a-number",  "range",           "length",    "list",    "too-many",       "text",
      "contradiction", "not-spoken"};
  const auto at = static_cast<std::size_t>(reason);
  return at < kNames.size() ? kNames[at] : "unknown";
}

Failure to_failure(const Malformed& malformed, std::string peer) {
  return Failure{FailureCode::kMalformed, FailureWhere::kPeer, malformed.what, std::move(peer), -1};
}

}  // namespace kvferry::sglang
