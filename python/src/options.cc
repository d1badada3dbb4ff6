#include "options.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "bindings.h"
#include "failures.h"

namespace kvferry::python {
namespace {

// A row tells no type; what its own setter takes does.
enum class OptionType { kNumber, kFlag, kText, kList };

OptionType type_of(const OptionRow& row) {
  Options scratch;
  if (row.unit == "host:port,...") return OptionType::kList;
  if (row.set(scratch, "")) return OptionType::kText;
  return row.set(scratch, "on") ? OptionType::kFlag : OptionType::kNumber;
}

const char* type_name(OptionType type) {
  switch (type) {
    case OptionType::kNumber:
      return "int";
    case OptionType::kFlag:
      return "bool";
    case OptionType::kText:
      return "str";
    case OptionType::kList:
      return "list[str]";
  }
  return "object";
}

const OptionRow* find_row(std::string_view name) {
  const auto rows = option_rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const OptionRow& r) { return r.name == name; });
  return row == rows.end() ? nullptr : &*row;
}

std::string unknown_option(std::string_view name) {
  nb::list names;
  for (const OptionRow& row : option_rows()) names.append(row.name.data());
  const nb::object nearest = nb::module_::import_("difflib").attr("get_close_matches")(
      nb::str(name.data(), name.size()), names);
  const std::string list = nb::cast<std::string>(nb::str(", ").attr("join")(nearest));
  return fmt::format("unknown option '{}': {}", name,
                     list.empty() ? "option_rows() lists them all" : "the nearest are " + list);
}

// As the command line takes it.
std::string to_text(nb::handle value, std::string_view name) {
  if (value.is(Py_True)) return "true";
  if (value.is(Py_False)) return "false";
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (PyIndex_Check(value.ptr()) != 0) {
    return nb::str(nb::steal(PyNumber_Index(value.ptr()))).c_str();
  }
  if (nb::hasattr(value, "__fspath__")) {
    return nb::cast<std::string>(nb::object(value.attr("__fspath__")()));
  }
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    std::string joined;
    for (const nb::handle item : value) {
      joined += (joined.empty() ? "" : ",") + to_text(item, name);
    }
    return joined;
  }
  refuse_type(fmt::format("option {}: a bool, int, text or list of texts is needed, not {}", name,
                          nb::type_name(value.type()).c_str()));
}

OptionValue get_option(const Options& options, const OptionRow& row, OptionType type) {
  const std::string text = row.get(options);
  nb::object value;
  switch (type) {
    case OptionType::kNumber:
      value = nb::int_(std::stoull(text));
      break;
    case OptionType::kFlag:
      value = nb::bool_(text == "true");
      break;
    case OptionType::kText:
      value = nb::str(text.c_str(), text.size());
      break;
    case OptionType::kList:
      value = text.empty() ? nb::object(nb::list()) : nb::str(text.c_str()).attr("split")(",");
      break;
  }
  return nb::borrow<OptionValue>(value);
}

const OptionRow& known_row(std::string_view name) {
  const OptionRow* row = find_row(name);
  if (row == nullptr) refuse(unknown_option(name));
  return *row;
}

void set_option(Options& options, std::string_view name, nb::handle value) {
  const OptionRow& row = known_row(name);
  check(row.set(options, to_text(value, name)));
}

// A dict, or another mapping.
void set_all(Options& options, nb::handle mapping) {
  if (!nb::hasattr(mapping, "keys")) {
    refuse_type(fmt::format("options: an Options or a mapping is needed, not {}",
                            nb::type_name(mapping.type()).c_str()));
  }
  const nb::dict values = nb::borrow<nb::dict>(
      nb::object(nb::handle(reinterpret_cast<PyObject*>(&PyDict_Type))(mapping)));
  for (const auto [name, value] : values) {
    set_option(options, nb::cast<std::string>(nb::str(nb::handle(name))), value);
  }
}

void add_attribute(nb::class_<Options>& type, const OptionRow& row) {
  const OptionType kind = type_of(row);
  const OptionRow* at = &row;
  const std::string get = fmt::format("def {}(self) -> {}", row.name, type_name(kind));
  const std::string set =
      fmt::format("def {}(self, value: {}, /) -> None", row.name, type_name(kind));
  const std::string fallback = row.get(Options{});
  std::string doc(row.help);
  doc[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(doc[0])));
  doc += fmt::format("{}. Default: {}.", row.unit.empty() ? "" : fmt::format(" ({})", row.unit),
                     fallback.empty() ? "empty" : fallback);
  type.def_prop_rw(
      row.name.data(), [at, kind](const Options& self) { return get_option(self, *at, kind); },
      [at](Options& self, const OptionValue& value) {
        check(at->set(self, to_text(value, at->name)));
      },
      nb::for_getter(nb::sig(get.c_str())), nb::for_setter(nb::sig(set.c_str())), doc.c_str());
}

void bind_rows(nb::module_& module) {
  nb::class_<OptionRow>(module, "OptionRow",
                        R"(One option of Options: name, unit ("ms", "bytes", ""), help, default.)")
      .def_prop_ro("name", [](const OptionRow& self) { return std::string(self.name); })
      .def_prop_ro("unit", [](const OptionRow& self) { return std::string(self.unit); })
      .def_prop_ro("help", [](const OptionRow& self) { return std::string(self.help); })
      .def_prop_ro(
          "default", [](const OptionRow& self) { return self.get(Options{}); }, "As text.");
  module.def(
      "option_rows",
      [] {
        const auto rows = option_rows();
        return std::vector<OptionRow>(rows.begin(), rows.end());
      },
      "One row per option of Options.");
}

nb::dict to_dict(const Options& self) {
  nb::dict values;
  for (const OptionRow& row : option_rows()) {
    values[row.name.data()] = get_option(self, row, type_of(row));
  }
  return values;
}

}  // namespace

Options to_options(nb::handle value) {
  if (value.is_none()) return {};
  if (nb::isinstance<Options>(value)) return nb::cast<Options>(value);
  Options options;
  set_all(options, value);
  return options;
}

void bind_options(nb::module_& module) {
  bind_rows(module);
  nb::class_<Options> type(
      module, "Options",
      R"(Every limit and deadline of the library, each with its unit in its name.

A value is range-checked when it is set (InvalidArgument names option, value and range); what depends on
more than one option is checked by validate() and when a manager is made. An unknown name raises
InvalidArgument (AttributeError for an attribute) with the nearest names.)");
  type.def(
          "__init__",
          [](Options* self, const OptionsLike& values, const nb::kwargs& options) {
            Options made = to_options(values);
            set_all(made, options);
            new (self) Options(std::move(made));
          },
          nb::arg("values") = nb::none(), nb::arg("options"),
          nb::sig(
              "def __init__(self, values: Options | Mapping[str, OptionValue] | None = None, /, "
              "**options: OptionValue) -> None"),
          "Defaults, changed by values, changed by options.")
      .def(
          "set",
          [](Options& self, const std::string& name, const OptionValue& value) {
            set_option(self, name, value);
          },
          nb::arg("name"), nb::arg("value"),
          "value: as the option's type, or the text that the command line takes.")
      .def(
          "get",
          [](const Options& self, const std::string& name) {
            const OptionRow& row = known_row(name);
            return get_option(self, row, type_of(row));
          },
          nb::arg("name"))
      .def("to_dict", &to_dict, nb::sig("def to_dict(self) -> dict[str, OptionValue]"))
      .def(
          "validate", [](const Options& self) { check(validate(self)); },
          "Raises InvalidArgument that says what to change.")
      .def(
          "__setattr__",
          [](nb::handle self, const nb::str& name, nb::handle value) {
            if (find_row(name.c_str()) == nullptr) {
              PyErr_SetString(PyExc_AttributeError, unknown_option(name.c_str()).c_str());
              throw nb::python_error();
            }
            if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), value.ptr()) != 0) {
              throw nb::python_error();
            }
          },
          nb::sig("def __setattr__(self, name: str, value: OptionValue, /) -> None"));
  for (const OptionRow& row : option_rows()) add_attribute(type, row);
}

}  // namespace kvferry::python
