#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "failures.h"
#include "gil.h"
#include "kvferry/shared_pool.h"
#include "memory.h"

namespace kvferry::python {
namespace {

SharedPool make_pool(const Whole& bytes, bool huge_pages) {
  const auto size = to_number<std::uint64_t>(bytes, "bytes");
  const auto pages = huge_pages ? SharedPool::Pages::kHuge : SharedPool::Pages::kNormal;
  // Huge pages are taken at once, which may be hundreds of gigabytes to clear.
  return unwrap(without_gil([&] { return SharedPool::create(size, pages); }));
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const SharedPool* pool = nb::inst_ptr<SharedPool>(self);
  return PyBuffer_FillInfo(view, self, pool->base(), static_cast<Py_ssize_t>(pool->bytes()), 0,
                           flags);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer)}, {0, nullptr}};

BoundRegion pool_region(nb::handle self, RegionKind kind, const Whole& layer, const Whole& offset,
                        const Whole& item_bytes, const Whole& item_count) {
  BoundRegion bound;
  bound.memory = to_memory(self);
  Region& region = bound.region;
  region.kind = kind;
  region.layer = to_number<std::uint32_t>(layer, "layer");
  region.item_bytes = to_number<std::uint64_t>(item_bytes, "item_bytes");
  region.item_count = to_number<std::uint32_t>(item_count, "item_count");
  const auto at = to_number<std::uint64_t>(offset, "offset");
  const std::uint64_t rest = at <= bound.memory.bytes ? bound.memory.bytes - at : 0;
  if (region.item_bytes == 0 || region.item_count == 0 ||
      region.item_bytes > rest / region.item_count) {
    refuse(
        fmt::format("region: {} items of {} bytes from offset {} on do not lie within the pool's "
                    "{} bytes",
                    region.item_count, region.item_bytes, at, bound.memory.bytes));
  }
  region.base = bound.memory.base + at;
  region.memory_fd = bound.memory.memory_fd;
  region.memory_fd_offset = at;
  return bound;
}

}  // namespace

void bind_pool(nb::module_& module) {
  nb::class_<SharedPool>(
      module, "SharedPool", nb::type_slots(slots),
      R"(Memory for the pages of an engine that other processes of this host may read in place.

A sealed memfd. A prefill engine that keeps its regions here lets the shm transport copy straight out of
it; other memory goes through process_vm_readv or tcp.

Has the buffer protocol: memoryview(pool), numpy.frombuffer(pool, ...). The memory stays while a view, a
region of it or a manager of such a region lives.)")
      .def(
          "__init__",
          [](SharedPool* self, const Whole& bytes, bool huge_pages) {
            new (self) SharedPool(make_pool(bytes, huge_pages));
          },
          nb::arg("bytes"), nb::kw_only(), nb::arg("huge_pages") = false,
          R"(At least so many zeroed bytes, rounded up to whole pages.

Raises KvferryError that names what the host lacks (huge_pages needs vm.nr_hugepages).)")
      .def_static("create", &make_pool, nb::arg("bytes"), nb::kw_only(),
                  nb::arg("huge_pages") = false, "As SharedPool(); C++'s name.")
      .def_prop_ro(
          "base",
          [](const SharedPool& self) { return reinterpret_cast<std::uintptr_t>(self.base()); },
          "Address of the first byte.")
      .def_prop_ro("bytes", &SharedPool::bytes)
      .def_prop_ro("fd", &SharedPool::fd, "Owned by the pool.")
      .def("__len__", &SharedPool::bytes)
      .def(
          "region", &pool_region, nb::arg("kind"), nb::arg("layer"), nb::kw_only(),
          nb::arg("offset"), nb::arg("item_bytes"), nb::arg("item_count"),
          nb::sig("def region(self, kind: RegionKind, layer: int, *, offset: int, item_bytes: int, "
                  "item_count: int) -> Region"),
          R"(A region of item_count x item_bytes bytes from offset (bytes) on, with its memory_fd.

Raises InvalidArgument when it does not lie within the pool.)");
}

}  // namespace kvferry::python
