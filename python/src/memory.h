// Memory that a Python object lends. Everything here needs the GIL, copying and destroying too.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>

#include "kvferry/kv_args.h"

namespace kvferry::python {

namespace nb = nanobind;

// A contiguous piece of memory, there as long as one of these is: owner (or array) holds the
// lender.
struct Memory {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  bool readonly = false;
  MemoryKind kind = MemoryKind::kHost;
  int memory_fd = -1;
  nb::object owner;             // a memoryview, a SharedPool; none for a bare pointer
  nb::ndarray<nb::ro> array{};  // of what came by DLPack
};

// From (pointer, bytes), a SharedPool, an object with a contiguous buffer, or one with __dlpack__.
// InvalidArgument for memory that is not contiguous or empty, TypeError for another object.
Memory to_memory(nb::handle object);

// A region and its memory.
struct BoundRegion {
  Region region;
  Memory memory;
};

}  // namespace kvferry::python
