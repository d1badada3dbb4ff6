// What makes an object usable in a with statement: it gives itself, and its end is stop().
#pragma once

#include <nanobind/nanobind.h>

namespace kvferry::python {

namespace nb = nanobind;

// enter: the signature of __enter__, which names the class. Bound has stop() const.
template <typename Bound>
void def_with(nb::class_<Bound>& type, const char* enter) {
  type.def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig(enter))
      .def(
          "__exit__", [](const Bound& self, nb::handle, nb::handle, nb::handle) { self.stop(); },
          nb::arg("exc_type") = nb::none(), nb::arg("exc_value") = nb::none(),
          nb::arg("traceback") = nb::none(),
          nb::sig("def __exit__(self, exc_type: type[BaseException] | None = None, exc_value: "
                  "BaseException | None = None, traceback: types.TracebackType | None = None) -> "
                  "None"),
          "Calls stop().");
}

}  // namespace kvferry::python
