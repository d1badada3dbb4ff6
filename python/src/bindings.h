// One function per concern, each of which adds its names to the module.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "live_objects.h"

namespace kvferry::python {

namespace nb = nanobind;

void bind_enums(nb::module_& module);
void bind_failures(nb::module_& module);
void bind_values(nb::module_& module);
void bind_options(nb::module_& module);
void bind_args(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_manager(nb::module_& module, const std::shared_ptr<LiveObjects>& live);
void bind_rooms(nb::module_& module);
void bind_bootstrap(nb::module_& module, const std::shared_ptr<LiveObjects>& live);

}  // namespace kvferry::python
