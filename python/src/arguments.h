// Arguments that a function converts itself, so that a wrong one gets an error that names it; the
// classes give them the type that signatures and the stub file show.
#pragma once

#include <nanobind/nanobind.h>

#include "integers.h"

namespace kvferry::python {

namespace nb = nanobind;

inline bool accept_any(PyObject*) { return true; }

class Whole : public nb::object {  // integers.h
  NB_OBJECT_DEFAULT(Whole, nb::object, "int", accept_any)
};
class WholeList : public nb::object {  // integers.h
  NB_OBJECT_DEFAULT(WholeList, nb::object, "IntList", accept_any)
};
class BindingLike : public nb::object {  // values.h
  NB_OBJECT_DEFAULT(BindingLike, nb::object, "BindingLike", accept_any)
};
class MemoryLike : public nb::object {  // memory.h
  NB_OBJECT_DEFAULT(MemoryLike, nb::object, "Memory", accept_any)
};
class BufferLike : public nb::object {
  NB_OBJECT_DEFAULT(BufferLike, nb::object, "ArrayBuffer", accept_any)
};
class OptionsLike : public nb::object {  // options.h
  NB_OBJECT_DEFAULT(OptionsLike, nb::object, "Options | Mapping[str, OptionValue]", accept_any)
};
class OptionValue : public nb::object {  // options.h
  NB_OBJECT_DEFAULT(OptionValue, nb::object, "OptionValue", accept_any)
};
class U32Array : public nb::object {  // values.h
  NB_OBJECT_DEFAULT(U32Array, nb::object, "array.array[int]", accept_any)
};

// A whole number of Owner as an attribute; one that its type can't hold gets an error that names
// it.
template <typename Class, typename Owner, typename Number, typename... Extra>
void def_number(Class& type, const char* name, Number Owner::*member, const Extra&... extra) {
  type.def_prop_rw(
      name, [member](const Owner& self) { return self.*member; },
      [member, name](Owner& self, const Whole& value) {
        self.*member = to_number<Number>(value, name);
      },
      extra...);
}

}  // namespace kvferry::python
