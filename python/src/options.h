// Options from Python's values. Everything here needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "kvferry/options.h"

namespace kvferry::python {

// Defaults for None, else a copy of an Options or what a mapping changes.
Options to_options(nanobind::handle value);

}  // namespace kvferry::python
