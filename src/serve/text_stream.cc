#include "serve/text_stream.h"

#include <algorithm>
#include <cstdint>

namespace kvferry::serve {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::size_t sequence_bytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// Bytes of the character at the start, 0 when it is invalid. Fewer bytes than it needs count as
// valid when those that are there fit and partial is set.
std::size_t character_bytes(std::string_view bytes, bool partial) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const std::size_t wanted = sequence_bytes(lead);
  if (wanted == 0) return 0;
  for (std::size_t at = 1; at < wanted; ++at) {
    if (at == bytes.size()) {
      return partial ? wanted : 0;
    }
    const auto byte = static_cast<unsigned char>(bytes[at]);
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    if (at == 1) {
      // Overlong forms, surrogates and values past U+10FFFF.
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (byte < low || byte > high) return 0;
  }
  return wanted;
}

// Bytes at the end that begin a character without ending it.
std::size_t unfinished_tail(std::string_view bytes) {
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, bytes.size()); ++tail) {
    const std::string_view rest = bytes.substr(bytes.size() - tail);
    if (sequence_bytes(static_cast<unsigned char>(rest[0])) > 1) {
      return character_bytes(rest, true) > tail ? tail : 0;
    }
  }
  return 0;
}

// Bytes at the end that may be the start of a stop string.
std::size_t stop_tail(std::string_view bytes, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const auto& stop : stops) {
    for (std::size_t tail = std::min(stop.size() - 1, bytes.size()); tail > longest; --tail) {
      if (bytes.ends_with(std::string_view(stop).substr(0, tail))) {
        longest = tail;
        break;
      }
    }
  }
  return longest;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const std::size_t count = character_bytes(bytes, false);
    text += count == 0 ? kReplacement : bytes.substr(0, count);
    bytes.remove_prefix(std::max<std::size_t>(count, 1));
  }
  return text;
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) {
    return {};
  }
  held_ += bytes;
  std::size_t stop_at = std::string::npos;
  for (const auto& stop : stops_) {
    const std::size_t found = held_.find(stop);
    if (found < stop_at) {
      stop_at = found;
      matched_ = stop;
    }
  }
  std::size_t ready = held_.size();
  if (stop_at != std::string::npos) {
    stopped_ = true;
    ready = stop_at;
  } else {
    ready -= std::max(unfinished_tail(held_), stop_tail(held_, stops_));
  }
  std::string text = valid_utf8(std::string_view(held_).substr(0, ready));
  held_.erase(0, stopped_ ? held_.size() : ready);
  return text;
}

std::string TextStream::flush() {
  std::string text = valid_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace kvferry::serve
