// What a fuzz target reads its choices from: the bytes of one input, front to back. Reading past
// their end gives zeros, so that every prefix of an input is an input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvferry::fuzz {

class Input {
 public:
  explicit Input(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool is_empty() const { return at_ >= bytes_.size(); }
  std::span<const std::uint8_t> rest() const { return bytes_.subspan(at_); }

  std::uint8_t byte() { return is_empty() ? std::uint8_t{0} : bytes_[at_++]; }
  bool coin() { return byte() % 2 == 1; }
  // In [0, bound); 0 < bound <= 256.
  std::uint32_t below(std::uint32_t bound) { return byte() % bound; }

  template <typename T>
  T raw() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(static_cast<T>(byte()) << (8 * i)));
    }
    return value;
  }

  // A number that is mostly right: thirteen times of sixteen the right one, else a neighbour, a
  // border of its type or anything. Right names with wrong values get further than noise does.
  template <typename T>
  T near(T right) {
    switch (byte() % 16) {
      case 0:
        return static_cast<T>(right + 1);
      case 1:
        return static_cast<T>(right - 1);
      case 2:
        switch (byte() % 3) {
          case 0:
            return std::numeric_limits<T>::max();
          case 1:
            return T{0};
          default:
            return raw<T>();
        }
      default:
        return right;
    }
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace kvferry::fuzz
