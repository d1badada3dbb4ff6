// Reads the fields of one multipart message by position. The first thing that is wrong is kept and
// ends the reading: later reads give empty values, so that a decoder is a plain list of fields and
// asks once, at its end. Private to the codec.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dialect/sglang/codec.h"

namespace kvferry::sglang {

struct NumberRange {
  std::int64_t min = 0;
  std::int64_t max = std::numeric_limits<std::uint32_t>::max();
};

class FrameReader {
 public:
  // skipped: frames before the first field (a guard), so that frame numbers in texts are those of
  // the message as received. Fails at once when fewer than least frames follow them.
  FrameReader(std::string_view kind, std::span<const FrameView> frames, std::size_t skipped,
              std::size_t least, const CodecLimits& limits);

  // --- one value; absent: an empty frame or none ---
  std::int64_t number(std::size_t at, std::string_view field, NumberRange range);
  std::optional<std::int64_t> optional_number(std::size_t at, std::string_view field,
                                              NumberRange range);
  RoomId room(std::size_t at);
  RankEndpoint endpoint(std::size_t ip_at);  // ip and port in two frames
  std::string text(std::size_t at, std::string_view field);
  std::string optional_text(std::size_t at, std::string_view field);
  // Text for people: control bytes and bytes that are not UTF-8 become '?'; cut at the limit.
  std::string reason(std::size_t at);
  std::vector<std::uint8_t> blob(std::size_t at, std::string_view field, std::size_t max_bytes);
  std::uint64_t pointer(std::size_t at);  // 8 bytes; anything else is 0, as SGLang reads it

  // --- lists ---
  std::vector<PageIndex> pages(std::size_t at, std::string_view field);  // i32, none negative
  std::vector<std::uint32_t> u32_list(std::size_t at, std::string_view field);
  std::vector<std::uint64_t> u64_list(std::size_t at, std::string_view field);
  PerComponent<std::uint32_t> u32_lists(std::size_t at, std::string_view field,
                                        std::size_t max_elements);
  PerComponent<std::uint64_t> u64_lists(std::size_t at, std::string_view field,
                                        std::size_t max_elements);
  PerComponent<std::uint32_t> index_lists(std::size_t at, std::string_view field);  // as pages

  // --- what is wrong ---
  void fail(MalformedReason reason, std::size_t at, std::string_view field, std::string what);
  bool failed() const { return error_.has_value(); }
  Malformed take_error() { return std::move(*error_); }

  std::size_t size() const { return frames_.size(); }
  bool is_absent(std::size_t at) const { return at >= frames_.size() || frames_[at].empty(); }
  std::string_view characters(std::size_t at) const;  // of a frame; empty when absent

 private:
  template <typename T>
  std::vector<T> plain_list(std::size_t at, std::string_view field, std::size_t max_elements);
  template <typename T>
  PerComponent<T> packed_lists(std::size_t at, std::string_view field, std::size_t max_elements);
  void refuse_negative(const std::vector<std::uint32_t>& values, std::size_t at,
                       std::string_view field);

  std::string_view kind_;
  std::span<const FrameView> frames_;
  std::size_t skipped_;
  const CodecLimits& limits_;
  std::optional<Malformed> error_;
};

// Bytes of a peer in a text for people: printable ASCII, quoted, cut after 32.
std::string quoted(FrameView bytes);

}  // namespace kvferry::sglang
