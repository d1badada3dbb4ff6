// Whole numbers from Python, range-checked with an error that says which one is wrong. Everything
// here needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvferry::python {

namespace nb = nanobind;

// Anything with __index__ (numpy's integers too). TypeError for another type, InvalidArgument for a
// value outside [min, max]; both name the argument.
std::int64_t to_signed(nb::handle value, std::string_view name, std::int64_t min, std::int64_t max);
std::uint64_t to_unsigned(nb::handle value, std::string_view name, std::uint64_t max);

template <typename T>
T to_number(nb::handle value, std::string_view name) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(to_signed(value, name, Limits::min(), Limits::max()));
  } else {
    return static_cast<T>(to_unsigned(value, name, Limits::max()));
  }
}

// One-dimensional whole numbers below limit: a list, a tuple, another sequence, or a buffer of
// integers of 1 to 8 bytes with any stride. The error names index and value and ends with allowed.
std::vector<std::uint32_t> to_numbers(nb::handle list, std::string_view name, std::uint32_t limit,
                                      std::string_view allowed);

// A buffer's item type from its format: 'i' or 'u' of so many bytes in this host's order, or ' '.
struct IntegerFormat {
  char sign = ' ';
  std::size_t bytes = 0;
};
IntegerFormat integer_format(const Py_buffer& view);

}  // namespace kvferry::python
