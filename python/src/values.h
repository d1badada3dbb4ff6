// Small values that several of the module's parts convert. Everything here needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

#include "kvferry/ids.h"

namespace kvferry::python {

namespace nb = nanobind;

// From a Binding, an integer below 2^128, 16 bytes (big endian), 32 hexadecimal digits or a
// uuid.UUID. InvalidArgument for another value, TypeError for another type.
Binding to_binding(nb::handle value);

// array.array of that type code: a buffer that numpy reads in place, without needing numpy.
nb::object to_array(char type_code, const void* items, std::size_t bytes);
inline nb::object to_array(std::span<const std::uint32_t> items) {
  return to_array('I', items.data(), items.size_bytes());
}
inline nb::object to_array(std::span<const std::uint64_t> items) {
  return to_array('Q', items.data(), items.size_bytes());
}

}  // namespace kvferry::python
