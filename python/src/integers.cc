#include "integers.h"

#include <fmt/format.h>

#include <cstring>

#include "failures.h"

namespace kvferry::python {
namespace {

nb::object to_index(nb::handle value, std::string_view name) {
  nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    refuse_type(fmt::format("{}: a whole number is needed, not {}", name,
                            nb::type_name(value.type()).c_str()));
  }
  return index;
}

template <typename Number>
[[noreturn]] void refuse_number(nb::handle index, std::string_view name, Number min, Number max) {
  refuse(fmt::format("{}: {} is not from {} to {}", name, nb::str(index).c_str(), min, max));
}

class Buffer {
 public:
  // Invalid, without an error, for an object that has none.
  explicit Buffer(nb::handle object) {
    held_ = PyObject_CheckBuffer(object.ptr()) != 0 &&
            PyObject_GetBuffer(object.ptr(), &view_, PyBUF_RECORDS_RO) == 0;
    if (!held_) PyErr_Clear();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  bool held() const { return held_; }
  const Py_buffer& view() const { return view_; }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

[[noreturn]] void refuse_item(std::string_view name, Py_ssize_t at, std::string_view value,
                              std::string_view allowed) {
  refuse(fmt::format("{}[{}] is {}: {}", name, at, value, allowed));
}

template <typename T>
std::vector<std::uint32_t> read_items(const Py_buffer& view, std::string_view name,
                                      std::uint32_t limit, std::string_view allowed) {
  const Py_ssize_t count = view.shape[0];
  std::vector<std::uint32_t> numbers;
  numbers.reserve(static_cast<std::size_t>(count));
  const char* item = static_cast<const char*>(view.buf);
  for (Py_ssize_t i = 0; i < count; ++i, item += view.strides[0]) {
    T value{};
    std::memcpy(&value, item, sizeof value);
    if (std::cmp_less(value, 0) || std::cmp_greater_equal(value, limit)) {
      refuse_item(
          name, i,
          fmt::format(
              "{}",
              static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(
                  value)),
          allowed);
    }
    numbers.push_back(static_cast<std::uint32_t>(value));
  }
  return numbers;
}

std::vector<std::uint32_t> read_buffer(const Py_buffer& view, std::string_view name,
                                       std::uint32_t limit, std::string_view allowed) {
  const IntegerFormat format = integer_format(view);
  if (view.ndim != 1 || format.sign == ' ') {
    refuse(fmt::format("{}: one dimension of integers is needed, not {} of format '{}'", name,
                       view.ndim, view.format == nullptr ? "B" : view.format));
  }
  const bool is_signed = format.sign == 'i';
  switch (format.bytes) {
    case 1:
      return is_signed ? read_items<std::int8_t>(view, name, limit, allowed)
                       : read_items<std::uint8_t>(view, name, limit, allowed);
    case 2:
      return is_signed ? read_items<std::int16_t>(view, name, limit, allowed)
                       : read_items<std::uint16_t>(view, name, limit, allowed);
    case 4:
      return is_signed ? read_items<std::int32_t>(view, name, limit, allowed)
                       : read_items<std::uint32_t>(view, name, limit, allowed);
    default:
      return is_signed ? read_items<std::int64_t>(view, name, limit, allowed)
                       : read_items<std::uint64_t>(view, name, limit, allowed);
  }
}

std::vector<std::uint32_t> read_sequence(nb::handle list, std::string_view name,
                                         std::uint32_t limit, std::string_view allowed) {
  const nb::object fast = nb::steal(PySequence_Fast(list.ptr(), ""));
  if (!fast.is_valid()) {
    PyErr_Clear();
    refuse_type(fmt::format("{}: a list or a buffer of whole numbers is needed, not {}", name,
                            nb::type_name(list.type()).c_str()));
  }
  std::vector<std::uint32_t> numbers;
  // Asked each time: an item's __index__ is the caller's code and may change the list.
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.ptr()); ++i) {
    const nb::object item = nb::borrow(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    const nb::object index = to_index(item, fmt::format("{}[{}]", name, i));
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow != 0 || value < 0 || value >= static_cast<long long>(limit)) {
      refuse_item(name, i, nb::str(index).c_str(), allowed);
    }
    numbers.push_back(static_cast<std::uint32_t>(value));
  }
  return numbers;
}

}  // namespace

std::int64_t to_signed(nb::handle value, std::string_view name, std::int64_t min,
                       std::int64_t max) {
  const nb::object index = to_index(value, name);
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0 || number < min || number > max) refuse_number(index, name, min, max);
  return number;
}

std::uint64_t to_unsigned(nb::handle value, std::string_view name, std::uint64_t max) {
  const nb::object index = to_index(value, name);
  const unsigned long long number = PyLong_AsUnsignedLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse_number(index, name, std::uint64_t{0}, max);
  }
  if (number > max) refuse_number(index, name, std::uint64_t{0}, max);
  return number;
}

std::vector<std::uint32_t> to_numbers(nb::handle list, std::string_view name, std::uint32_t limit,
                                      std::string_view allowed) {
  const Buffer buffer(list);
  return buffer.held() ? read_buffer(buffer.view(), name, limit, allowed)
                       : read_sequence(list, name, limit, allowed);
}

IntegerFormat integer_format(const Py_buffer& view) {
  const char* format = view.format == nullptr ? "B" : view.format;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return {};
  const auto bytes = static_cast<std::size_t>(view.itemsize);
  if (std::strchr("bhilqn", format[0]) != nullptr) return {'i', bytes};
  if (std::strchr("BHILQN", format[0]) != nullptr) return {'u', bytes};
  return {};
}

}  // namespace kvferry::python
