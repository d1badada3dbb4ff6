// Little-endian fields in the messages of lanes. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace kvferry::data_plane {

template <typename T>
void put(std::vector<std::uint8_t>& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<std::uint8_t>(std::uint64_t{value} >> (8 * i)));
  }
}

inline void put_bytes(std::vector<std::uint8_t>& out, std::span<const std::uint8_t> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Reads fields one after another from a buffer that is long enough for all of them.
class Fields {
 public:
  explicit Fields(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= std::uint64_t{bytes_[i]} << (8 * i);
    bytes_ = bytes_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  template <std::size_t N>
  std::array<std::uint8_t, N> take_array() {
    std::array<std::uint8_t, N> out{};
    std::memcpy(out.data(), bytes_.data(), N);
    bytes_ = bytes_.subspan(N);
    return out;
  }
  std::size_t left() const { return bytes_.size(); }
  std::span<const std::uint8_t> rest() const { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace kvferry::data_plane
