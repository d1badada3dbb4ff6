#include "dialect/sglang/frame_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kvferry::sglang {
namespace {

constexpr std::size_t kShownBytes = 32;
constexpr std::int64_t kMaxPort = 65'535;
constexpr std::uint32_t kSignBit = 0x8000'0000U;

bool is_printable(std::uint8_t byte) { return byte > 0x20 && byte < 0x7F; }

template <typename T>
T little_endian(FrameView bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(bytes[at + i]) << (8 * i));
  }
  return value;
}

// Bytes of the well-formed UTF-8 character at the front; 0 when there is none.
std::size_t utf8_length(FrameView text) {
  const auto continues = [&](std::size_t i) {
    return i < text.size() && (text[i] & 0xC0U) == 0x80U;
  };
  const std::uint8_t first = text[0];
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return continues(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const bool complete = continues(1) && continues(2);
    const bool overlong = complete && first == 0xE0 && text[1] < 0xA0;
    const bool surrogate = complete && first == 0xED && text[1] >= 0xA0;
    return complete && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool complete = continues(1) && continues(2) && continues(3);
    const bool overlong = complete && first == 0xF0 && text[1] < 0x90;
    const bool beyond = complete && first == 0xF4 && text[1] >= 0x90;
    return complete && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string quoted(FrameView bytes) {
  std::string shown = "'";
  for (const std::uint8_t byte : bytes.first(std::min(bytes.size(), kShownBytes))) {
    shown += is_printable(byte) || byte == ' ' ? static_cast<char>(byte) : '?';
  }
  return shown + (bytes.size() > kShownBytes ? fmt::format("...' ({} bytes)", bytes.size()) : "'");
}

FrameReader::FrameReader(std::string_view kind, std::span<const FrameView> frames,
                         std::size_t skipped, std::size_t least, const CodecLimits& limits)
    : kind_(kind), frames_(frames.subspan(skipped)), skipped_(skipped), limits_(limits) {
  if (frames_.size() < least) {
    error_ = Malformed{MalformedReason::kTooFewFrames,
                       fmt::format("{}: expected at least {} frames, got {}", kind_,
                                   least + skipped_, frames.size()),
                       -1};
  }
}

void FrameReader::fail(MalformedReason reason, std::size_t at, std::string_view field,
                       std::string what) {
  if (!error_) {
    error_ =
        Malformed{reason, fmt::format("{}, frame {} ({}): {}", kind_, at + skipped_, field, what),
                  static_cast<std::int32_t>(at + skipped_)};
  }
}

std::string_view FrameReader::characters(std::size_t at) const {
  return is_absent(at) ? std::string_view()
                       : std::string_view(reinterpret_cast<const char*>(frames_[at].data()),
                                          frames_[at].size());
}

std::optional<std::int64_t> FrameReader::optional_number(std::size_t at, std::string_view field,
                                                         NumberRange range) {
  if (failed() || is_absent(at)) {
    return std::nullopt;
  }
  const std::string_view text = characters(at);
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = stop == text.data() + text.size();
  if (!whole || error == std::errc::invalid_argument) {
    fail(MalformedReason::kNotANumber, at, field,
         fmt::format("expected a whole number, got {}", quoted(frames_[at])));
    return std::nullopt;
  }
  if (error != std::errc{} || value < range.min || value > range.max) {
    fail(MalformedReason::kOutOfRange, at, field,
         fmt::format("expected a number from {} to {}, got {}", range.min, range.max,
                     quoted(frames_[at])));
    return std::nullopt;
  }
  return value;
}

std::int64_t FrameReader::number(std::size_t at, std::string_view field, NumberRange range) {
  if (is_absent(at)) {
    fail(MalformedReason::kMissing, at, field, "expected a number, got an empty frame");
  }
  return optional_number(at, field, range).value_or(0);
}

RoomId FrameReader::room(std::size_t at) {
  const NumberRange range{0, std::numeric_limits<std::int64_t>::max()};
  return RoomId(static_cast<std::uint64_t>(number(at, "room", range)));
}

RankEndpoint FrameReader::endpoint(std::size_t ip_at) {
  RankEndpoint endpoint;
  endpoint.ip = text(ip_at, "decode ip");
  endpoint.port = static_cast<std::uint16_t>(number(ip_at + 1, "decode port", {1, kMaxPort}));
  return endpoint;
}

std::string FrameReader::optional_text(std::size_t at, std::string_view field) {
  if (failed() || is_absent(at)) {
    return {};
  }
  const FrameView bytes = frames_[at];
  if (bytes.size() > limits_.max_text_bytes) {
    fail(MalformedReason::kBadText, at, field,
         fmt::format("expected at most {} bytes, got {}", limits_.max_text_bytes, bytes.size()));
    return {};
  }
  if (!std::all_of(bytes.begin(), bytes.end(), is_printable)) {
    fail(MalformedReason::kBadText, at, field,
         fmt::format("expected printable ASCII without spaces, got {}", quoted(bytes)));
    return {};
  }
  return std::string(characters(at));
}

std::string FrameReader::text(std::size_t at, std::string_view field) {
  if (is_absent(at)) {
    fail(MalformedReason::kMissing, at, field, "expected a text, got an empty frame");
  }
  return optional_text(at, field);
}

std::string FrameReader::reason(std::size_t at) {
  std::string out;
  if (failed() || is_absent(at)) {
    return out;
  }
  FrameView rest = frames_[at];
  while (!rest.empty()) {
    std::size_t length = utf8_length(rest);
    const bool shown = length > 1 || (length == 1 && (is_printable(rest[0]) || rest[0] == ' '));
    const std::string_view piece =
        shown ? std::string_view(reinterpret_cast<const char*>(rest.data()), length)
              : std::string_view("?");
    if (out.size() + piece.size() > limits_.max_reason_bytes) {
      break;
    }
    out += piece;
    rest = rest.subspan(std::max<std::size_t>(length, 1));
  }
  return out;
}

std::vector<std::uint8_t> FrameReader::blob(std::size_t at, std::string_view field,
                                            std::size_t max_bytes) {
  if (failed() || is_absent(at)) {
    return {};
  }
  const FrameView bytes = frames_[at];
  if (bytes.size() > max_bytes) {
    fail(MalformedReason::kTooLarge, at, field,
         fmt::format("expected at most {} bytes, got {}", max_bytes, bytes.size()));
    return {};
  }
  return {bytes.begin(), bytes.end()};
}

std::uint64_t FrameReader::pointer(std::size_t at) {
  const bool there = !failed() && !is_absent(at) && frames_[at].size() == sizeof(std::uint64_t);
  return there ? little_endian<std::uint64_t>(frames_[at], 0) : 0;
}

template <typename T>
std::vector<T> FrameReader::plain_list(std::size_t at, std::string_view field,
                                       std::size_t max_elements) {
  if (failed() || is_absent(at)) {
    return {};
  }
  const FrameView bytes = frames_[at];
  if (bytes.size() % sizeof(T) != 0) {
    fail(MalformedReason::kBadLength, at, field,
         fmt::format("expected elements of {} bytes, got {} bytes", sizeof(T), bytes.size()));
    return {};
  }
  const std::size_t count = bytes.size() / sizeof(T);
  if (count > max_elements) {
    fail(MalformedReason::kTooMany, at, field,
         fmt::format("expected at most {} elements, got {}", max_elements, count));
    return {};
  }
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = little_endian<T>(bytes, i * sizeof(T));
  }
  return values;
}

template <typename T>
PerComponent<T> FrameReader::packed_lists(std::size_t at, std::string_view field,
                                          std::size_t max_elements) {
  if (failed() || is_absent(at)) {
    return {};
  }
  constexpr std::size_t kWord = sizeof(std::uint32_t);
  const FrameView bytes = frames_[at];
  const std::size_t lists = bytes.size() < kWord ? 0 : little_endian<std::uint32_t>(bytes, 0);
  if (lists > limits_.max_components) {
    fail(MalformedReason::kTooMany, at, field,
         fmt::format("expected at most {} lists, got {}", limits_.max_components, lists));
    return {};
  }
  std::size_t begin = kWord * (1 + lists);
  if (bytes.size() < begin) {
    fail(MalformedReason::kBadList, at, field,
         fmt::format("expected the lengths of {} lists in {} bytes, got {} bytes", lists, begin,
                     bytes.size()));
    return {};
  }
  PerComponent<T> out(lists);
  for (std::size_t i = 0; i < lists; ++i) {
    const std::size_t length = little_endian<std::uint32_t>(bytes, kWord * (1 + i));
    if (length > bytes.size() - begin || length % sizeof(T) != 0) {
      fail(MalformedReason::kBadList, at, field,
           fmt::format("expected list {} as elements of {} bytes in the {} bytes left, got a "
                       "length of {}",
                       i, sizeof(T), bytes.size() - begin, length));
      return {};
    }
    const std::size_t count = length / sizeof(T);
    if (count > max_elements) {
      fail(MalformedReason::kTooMany, at, field,
           fmt::format("expected at most {} more elements in list {}, got {}", max_elements, i,
                       count));
      return {};
    }
    max_elements -= count;
    out[i].resize(count);
    for (std::size_t k = 0; k < count; ++k) {
      out[i][k] = little_endian<T>(bytes, begin + k * sizeof(T));
    }
    begin += length;
  }
  if (begin != bytes.size()) {
    fail(MalformedReason::kBadList, at, field,
         fmt::format("expected {} bytes in all, got {}", begin, bytes.size()));
    return {};
  }
  return out;
}

void FrameReader::refuse_negative(const std::vector<std::uint32_t>& values, std::size_t at,
                                  std::string_view field) {
  const auto negative = std::find_if(values.begin(), values.end(),
                                     [](std::uint32_t value) { return value >= kSignBit; });
  if (negative != values.end()) {
    fail(MalformedReason::kOutOfRange, at, field,
         fmt::format("expected no negative index, got {}", static_cast<std::int32_t>(*negative)));
  }
}

std::vector<PageIndex> FrameReader::pages(std::size_t at, std::string_view field) {
  const std::vector<std::uint32_t> values = plain_list<std::uint32_t>(at, field, limits_.max_pages);
  refuse_negative(values, at, field);
  std::vector<PageIndex> pages;
  if (!failed()) {
    pages.reserve(values.size());
    for (const std::uint32_t value : values) {
      pages.emplace_back(value);
    }
  }
  return pages;
}

std::vector<std::uint32_t> FrameReader::u32_list(std::size_t at, std::string_view field) {
  return plain_list<std::uint32_t>(at, field, limits_.max_buffers);
}

std::vector<std::uint64_t> FrameReader::u64_list(std::size_t at, std::string_view field) {
  return plain_list<std::uint64_t>(at, field, limits_.max_buffers);
}

PerComponent<std::uint32_t> FrameReader::u32_lists(std::size_t at, std::string_view field,
                                                   std::size_t max_elements) {
  return packed_lists<std::uint32_t>(at, field, max_elements);
}

PerComponent<std::uint64_t> FrameReader::u64_lists(std::size_t at, std::string_view field,
                                                   std::size_t max_elements) {
  return packed_lists<std::uint64_t>(at, field, max_elements);
}

PerComponent<std::uint32_t> FrameReader::index_lists(std::size_t at, std::string_view field) {
  PerComponent<std::uint32_t> lists =
      packed_lists<std::uint32_t>(at, field, limits_.max_state_indices);
  for (const std::vector<std::uint32_t>& list : lists) {
    refuse_negative(list, at, field);
  }
  return failed() ? PerComponent<std::uint32_t>() : lists;
}

}  // namespace kvferry::sglang
