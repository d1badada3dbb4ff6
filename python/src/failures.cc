#include "failures.h"

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "arguments.h"
#include "bindings.h"

namespace kvferry::python {
namespace {

constexpr const char* kModule = "kvferry._kvferry";

void add_exception(nb::module_& module, const char* name, const char* doc, nb::handle bases) {
  const std::string full_name = std::string(kModule) + "." + name;
  nb::object type =
      nb::steal(PyErr_NewExceptionWithDoc(full_name.c_str(), doc, bases.ptr(), nullptr));
  if (!type.is_valid()) throw nb::python_error();
  module.attr(name) = type;
}

using FailureTuple = std::tuple<FailureCode, FailureWhere, std::string, std::string, std::int32_t>;

}  // namespace

void raise(const Failure& failure) {
  const nb::object module = nb::module_::import_(kModule);
  const nb::object type = module.attr(
      failure.code == FailureCode::kInvalidArgument ? "InvalidArgument" : "KvferryError");
  const nb::object error = type(to_string(failure));
  error.attr("failure") = failure;
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

void refuse(std::string what) {
  raise(Failure{FailureCode::kInvalidArgument, FailureWhere::kLocal, std::move(what), {}, -1});
}

void refuse_type(const std::string& what) {
  PyErr_SetString(PyExc_TypeError, what.c_str());
  throw nb::python_error();
}

void bind_failures(nb::module_& module) {
  nb::class_<Failure>(module, "Failure",
                      R"(First cause of a failure; the same on every rank of a room.

Equal by value; picklable. str(failure) is "code at where (peer P, rank R): what".)")
      .def(
          "__init__",
          [](Failure* self, FailureCode code, FailureWhere where, std::string what,
             std::string peer, const Whole& rank) {
            new (self) Failure{code, where, std::move(what), std::move(peer),
                               to_number<std::int32_t>(rank, "rank")};
          },
          nb::arg("code") = FailureCode::kUnspecified, nb::arg("where") = FailureWhere::kLocal,
          nb::arg("what") = "", nb::arg("peer") = "", nb::arg("rank") = -1)
      .def_ro("code", &Failure::code)
      .def_ro("where", &Failure::where)
      .def_ro("what", &Failure::what,
              "One sentence without a newline; where something can be done, it says what.")
      .def_ro("peer", &Failure::peer,
              "Endpoint or name of the peer concerned; empty when there is none.")
      .def_ro("rank", &Failure::rank, "Global rank that reported the first cause; -1 when unknown.")
      .def_prop_ro(
          "http_status", [](const Failure& self) { return http_status(self.code); },
          "HTTP code that a server answers for this failure.")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__str__", [](const Failure& self) { return to_string(self); })
      .def("__repr__", [](const Failure& self) { return "<Failure: " + to_string(self) + ">"; })
      .def("__getstate__",
           [](const Failure& self) {
             return FailureTuple(self.code, self.where, self.what, self.peer, self.rank);
           })
      .def("__setstate__", [](Failure& self, FailureTuple state) {
        auto& [code, where, what, peer, rank] = state;
        new (&self) Failure{code, where, std::move(what), std::move(peer), rank};
      });
  add_exception(module, "KvferryError",
                "A call was refused. str() is the failure's text, failure the failure itself.",
                PyExc_Exception);
  const nb::tuple bases = nb::make_tuple(module.attr("KvferryError"), nb::handle(PyExc_ValueError));
  add_exception(module, "InvalidArgument",
                "A KvferryError whose code is FailureCode.InvalidArgument.", bases);
  module.def(
      "http_status", [](FailureCode code) { return http_status(code); }, nb::arg("code"),
      R"(HTTP code that a server answers for this failure.

499 for Aborted, 4xx for a caller's mistake, 5xx for what routers should count against the server.)");
}

}  // namespace kvferry::python
