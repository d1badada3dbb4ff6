// Damage to valid bytes, as transmission faults, other versions and strangers make it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/prng.h"

namespace kvferry::hostile {

using Bytes = std::vector<std::uint8_t>;

// How many damaged frames a listener gets: few in make test, KVFERRY_HOSTILE_FRAMES of them in
// make check-long.
inline std::uint64_t frame_count() {
  const char* const asked = std::getenv("KVFERRY_HOSTILE_FRAMES");
  return asked == nullptr ? 5'000 : std::strtoull(asked, nullptr, 10);
}

// One to four damages, most of them small, since what is damaged beyond recognition is refused by
// the first check. The same damage for the same state of prng.
class Mutator {
 public:
  Mutator(std::uint64_t seed, std::vector<Bytes> corpus)
      : prng_(seed), corpus_(std::move(corpus)) {}

  Bytes next() {
    Bytes bytes = corpus_[prng_.below(corpus_.size())];
    const std::uint64_t damages = 1 + prng_.below(4);
    for (std::uint64_t i = 0; i < damages; ++i) damage(bytes);
    return bytes;
  }
  Prng& prng() { return prng_; }

 private:
  void damage(Bytes& bytes) {
    if (bytes.empty()) {
      bytes.push_back(static_cast<std::uint8_t>(prng_.next()));
      return;
    }
    const std::size_t at = prng_.below(bytes.size());
    switch (prng_.below(8)) {
      case 0:  // a bit
        bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << prng_.below(8)));
        break;
      case 1:  // a byte
        bytes[at] = static_cast<std::uint8_t>(prng_.next());
        break;
      case 2:  // a number at its edges: lengths and counts
        write_number(bytes, at);
        break;
      case 3:  // its end is missing
        bytes.resize(at);
        break;
      case 4:  // something follows
        bytes.insert(bytes.end(), 1 + prng_.below(64), static_cast<std::uint8_t>(prng_.next()));
        break;
      case 5: {  // a piece twice
        const std::size_t length = std::min<std::size_t>(1 + prng_.below(32), bytes.size() - at);
        const Bytes piece(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at + length));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), piece.begin(), piece.end());
        break;
      }
      case 6:  // a piece is missing
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    bytes.begin() + static_cast<std::ptrdiff_t>(
                                        std::min(bytes.size(), at + 1 + prng_.below(32))));
        break;
      default: {  // the end of another frame
        const Bytes& other = corpus_[prng_.below(corpus_.size())];
        if (other.empty()) break;
        bytes.resize(at);
        bytes.insert(bytes.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(prng_.below(other.size())),
                     other.end());
      }
    }
  }
  void write_number(Bytes& bytes, std::size_t at) {
    static constexpr std::uint64_t kEdges[] = {0,
                                               1,
                                               0x7F,
                                               0x80,
                                               0xFF,
                                               0x7FFF,
                                               0xFFFF,
                                               0x7FFF'FFFF,
                                               0x8000'0000,
                                               0xFFFF'FFFF,
                                               0x7FFF'FFFF'FFFF'FFFF,
                                               0xFFFF'FFFF'FFFF'FFFF};
    std::uint64_t number = kEdges[prng_.below(std::size(kEdges))];
    const std::size_t width = std::size_t{1} << prng_.below(4);
    for (std::size_t i = at; i < std::min(bytes.size(), at + width); ++i, number >>= 8) {
      bytes[i] = static_cast<std::uint8_t>(number);
    }
  }

  Prng prng_;
  std::vector<Bytes> corpus_;
};

inline Bytes bytes_of(const std::string& text) { return Bytes(text.begin(), text.end()); }

// What arrives at any port sooner or later, whatever it speaks.
inline std::vector<Bytes> other_protocols() {
  std::vector<Bytes> all = {
      bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
      bytes_of("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),      // a TLS hello
      bytes_of("\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c"),  // a pickled object
      bytes_of("SSH-2.0-OpenSSH_9.2p1\r\n"),
      Bytes(64, 0),
      Bytes(1'024, 0xFF),
  };
  Bytes greeting = {0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 0};  // ZMTP 3.0 without security
  const Bytes mechanism = bytes_of("NULL");
  greeting.insert(greeting.end(), mechanism.begin(), mechanism.end());
  greeting.resize(64);
  all.push_back(std::move(greeting));
  return all;
}

}  // namespace kvferry::hostile
