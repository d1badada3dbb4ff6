#include "values.h"

#include <fmt/format.h>
#include <nanobind/operators.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "failures.h"
#include "integers.h"
#include "kvferry/kv_args.h"

namespace kvferry::python {
namespace {

constexpr std::size_t kBindingBytes = 16;

Binding from_bytes(std::string_view bytes) {
  if (bytes.size() != kBindingBytes) {
    refuse(fmt::format("binding: {} bytes, a binding has {}", bytes.size(), kBindingBytes));
  }
  std::array<std::uint64_t, 2> halves{};
  for (std::size_t i = 0; i < kBindingBytes; ++i) {
    std::uint64_t& half = halves[i / 8];
    half = half << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return {halves[0], halves[1]};
}

nb::bytes to_bytes(const Binding& binding) {
  std::array<char, kBindingBytes> bytes{};
  for (std::size_t i = 0; i < kBindingBytes; ++i) {
    const std::uint64_t half = i < 8 ? binding.high : binding.low;
    bytes[i] = static_cast<char>(half >> (56 - 8 * (i % 8)));
  }
  return nb::bytes(bytes.data(), bytes.size());
}

Binding from_index(nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const nb::object half_bits = nb::int_(64);
  const nb::object high = index >> half_bits;
  // A negative number shifts to a negative one, which is out of range like one that is too large.
  int overflow = 0;
  const long long sign = PyLong_AsLongLongAndOverflow(high.ptr(), &overflow);
  const unsigned long long top = PyLong_AsUnsignedLongLong(high.ptr());
  if (PyErr_Occurred() != nullptr || overflow < 0 || (overflow == 0 && sign < 0)) {
    PyErr_Clear();
    refuse(fmt::format("binding: {} is not from 0 to 2**128 - 1", nb::str(index).c_str()));
  }
  return {top, PyLong_AsUnsignedLongLongMask(index.ptr())};
}

Binding draw_binding() {
  Binding binding;
  while (binding.is_zero()) {
    std::array<std::uint64_t, 2> bits{};
    // 16 bytes come whole once the system's generator is ready (getrandom(2)).
    if (::getrandom(bits.data(), sizeof bits, 0) != sizeof bits) {
      if (errno == EINTR) continue;
      raise(Failure{FailureCode::kOperatingSystem,
                    FailureWhere::kLocal,
                    fmt::format("getrandom: {}", std::strerror(errno)),
                    {},
                    -1});
    }
    binding = {bits[0], bits[1]};
  }
  return binding;
}

void bind_binding(nb::module_& module) {
  nb::class_<Binding>(module, "Binding",
                      R"(128 bits that name one request; a retry draws a new one (Binding.random()).

Only equality matters. Zero means none. Hashable; picklable.)")
      .def(
          "__init__",
          [](Binding* self, const BindingLike& value) { new (self) Binding(to_binding(value)); },
          nb::arg("value") = 0,
          R"(From an integer from 0 to 2**128 - 1, 16 bytes (big endian), 32 hexadecimal digits, a uuid.UUID or
another Binding. Raises InvalidArgument for another value.)")
      .def_static("random", &draw_binding, "128 random bits of the operating system, never zero.")
      .def_ro("high", &Binding::high)
      .def_ro("low", &Binding::low)
      .def("is_zero", &Binding::is_zero)
      .def("to_hex", &Binding::to_hex, "32 lower-case hexadecimal digits; also str().")
      .def("__str__", &Binding::to_hex)
      .def("__repr__",
           [](const Binding& self) { return fmt::format("<Binding {}>", self.to_hex()); })
      .def("__int__",
           [](const Binding& self) {
             const nb::object value = (nb::int_(self.high) << nb::int_(64)) | nb::int_(self.low);
             return nb::borrow<nb::int_>(value);
           })
      .def("__bytes__", &to_bytes, "16 bytes, big endian.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const Binding& self) {
             return static_cast<Py_hash_t>(std::hash<Binding>{}(self) >> 1);
           })
      .def("__getstate__", [](const Binding& self) { return std::pair(self.high, self.low); })
      .def("__setstate__", [](Binding& self, std::pair<std::uint64_t, std::uint64_t> halves) {
        new (&self) Binding{halves.first, halves.second};
      });
}

void bind_aux_record(nb::module_& module) {
  nb::class_<AuxRecord> type(
      module, "AuxRecord",
      "First token and side data of one room, written by prefill, read by decode after Success.");
  type.def(
      "__init__",
      [](AuxRecord* self, const Whole& first_token, float first_logprob, const Whole& prompt_tokens,
         const Whole& cached_tokens) {
        new (self) AuxRecord{to_number<std::int32_t>(first_token, "first_token"), first_logprob,
                             to_number<std::uint32_t>(prompt_tokens, "prompt_tokens"),
                             to_number<std::uint32_t>(cached_tokens, "cached_tokens")};
      },
      nb::arg("first_token") = -1, nb::arg("first_logprob") = 0.0F, nb::arg("prompt_tokens") = 0,
      nb::arg("cached_tokens") = 0);
  def_number(type, "first_token", &AuxRecord::first_token);
  type.def_rw("first_logprob", &AuxRecord::first_logprob);
  def_number(type, "prompt_tokens", &AuxRecord::prompt_tokens);
  def_number(type, "cached_tokens", &AuxRecord::cached_tokens);
  type.def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__repr__", [](const AuxRecord& self) {
        return fmt::format(
            "<AuxRecord first_token={} first_logprob={} prompt_tokens={} cached_tokens={}>",
            self.first_token, self.first_logprob, self.prompt_tokens, self.cached_tokens);
      });
}

}  // namespace

Binding to_binding(nb::handle value) {
  if (nb::isinstance<Binding>(value)) return nb::cast<Binding>(value);
  if (nb::isinstance<nb::bytes>(value)) {
    const auto bytes = nb::borrow<nb::bytes>(value);
    return from_bytes({bytes.c_str(), bytes.size()});
  }
  if (nb::isinstance<nb::str>(value)) {
    const char* text = nb::borrow<nb::str>(value).c_str();
    const std::optional<Binding> binding = Binding::from_hex(text);
    if (!binding) refuse(fmt::format("binding: '{}' is not 32 hexadecimal digits", text));
    return *binding;
  }
  if (PyIndex_Check(value.ptr()) != 0) return from_index(value);
  // A uuid.UUID, without importing its module.
  const nb::object number = nb::getattr(value, "int", nb::none());
  if (PyIndex_Check(number.ptr()) == 0) {
    refuse_type(fmt::format(
        "binding: a Binding, an int, bytes, hexadecimal digits or a UUID is needed, not {}",
        nb::type_name(value.type()).c_str()));
  }
  return from_index(number);
}

nb::object to_array(char type_code, const void* items, std::size_t bytes) {
  const nb::object array = nb::module_::import_("array").attr("array");
  return array(nb::str(&type_code, 1), nb::bytes(items, bytes));
}

void bind_values(nb::module_& module) {
  bind_binding(module);
  bind_aux_record(module);
}

}  // namespace kvferry::python
