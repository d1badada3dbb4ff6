#include <nanobind/nanobind.h>

#include <memory>

#include "bindings.h"

// The module kvferry._kvferry. What one of its calls needs beyond its arguments hangs on its
// functions; there are no globals.
NB_MODULE(_kvferry, module) {
  namespace nb = nanobind;
  namespace py = kvferry::python;
  module.doc() =
      R"(Bindings over kvferry's public C++ API, under the same names.

Ids are plain integers (room, attempt, handle id, page, slot: unsigned), apart from Binding. Names of
values drop C++'s leading k: kPrefill is Role.Prefill.

Errors: where C++ returns an error value, KvferryError is raised; its attribute failure is that value. A
bad argument raises InvalidArgument, which is a KvferryError and a ValueError; an object of a wrong type
raises TypeError. What goes wrong later in a room is never raised: poll() says Failed and failure() why.

Threads: every method may be called from any thread, those of one sender or receiver from one thread at a
time. Calls that do work release the GIL; no thread of the library ever needs it.)";
  module.attr("__version__") = KVFERRY_VERSION;
  // What a program still refers to when it ends is nobody's leak.
  nb::set_leak_warnings(false);

  const auto live = std::make_shared<py::LiveObjects>();
  py::bind_enums(module);
  py::bind_failures(module);
  py::bind_values(module);
  py::bind_options(module);
  py::bind_pool(module);
  py::bind_args(module);
  py::bind_manager(module, live);
  py::bind_rooms(module);
  py::bind_bootstrap(module, live);

  nb::module_::import_("atexit").attr("register")(nb::cpp_function([live] { live->stop_all(); }));
  nb::module_::import_("os").attr("register_at_fork")(
      nb::arg("after_in_child") = nb::cpp_function([live] { live->mark_forked(); }));
}
