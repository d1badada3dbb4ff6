// Work without the interpreter's lock (GIL).
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

namespace kvferry::python {

// Before 3.14 the interpreter ends a daemon thread that asks for the GIL after the interpreter's
// own end by unwinding its stack. A destructor on the way would turn that into std::terminate, so
// the thread stays here until the process is gone, which is what 3.14 does itself.
inline void take_gil_back(PyThreadState* state) noexcept {
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

// Runs work, which touches no Python object, while other Python threads run.
template <typename Work>
auto without_gil(Work&& work) {
  struct Released {
    PyThreadState* state = PyEval_SaveThread();
    Released() = default;
    Released(const Released&) = delete;
    Released& operator=(const Released&) = delete;
    ~Released() { take_gil_back(state); }
  };
  const Released released;
  return std::forward<Work>(work)();
}

}  // namespace kvferry::python
