// From error values to Python's exceptions. Everything here needs the GIL.
#pragma once

#include <string>
#include <utility>

#include "kvferry/status.h"

namespace kvferry::python {

// Raises KvferryError, or InvalidArgument where the code says so.
[[noreturn]] void raise(const Failure& failure);
// Raises InvalidArgument: what was given, what is allowed.
[[noreturn]] void refuse(std::string what);
// Raises TypeError.
[[noreturn]] void refuse_type(const std::string& what);

inline void check(const Status& status) {
  if (!status) raise(status.error());
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}

}  // namespace kvferry::python
