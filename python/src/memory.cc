#include "memory.h"

#include <fmt/format.h>

#include "failures.h"
#include "integers.h"
#include "kvferry/shared_pool.h"

namespace kvferry::python {
namespace {

// DLPack's device types whose memory the host reads like its own (dlpack.h): kDLCPU, and what CUDA
// and ROCm have pinned for their devices.
bool is_host_device(int type) {
  constexpr int kCpu = 1;
  constexpr int kCudaHost = 3;
  constexpr int kRocmHost = 11;
  return type == kCpu || type == kCudaHost || type == kRocmHost;
}

Memory from_pointer(nb::handle object) {
  const auto pair = nb::borrow<nb::tuple>(object);
  if (pair.size() != 2) {
    refuse(fmt::format("memory: a tuple is (pointer, bytes), not {} values", pair.size()));
  }
  Memory memory;
  memory.base = reinterpret_cast<std::byte*>(to_number<std::uintptr_t>(pair[0], "memory pointer"));
  memory.bytes = to_number<std::uint64_t>(pair[1], "memory bytes");
  if (memory.base == nullptr) refuse("memory: the pointer is 0");
  return memory;
}

Memory from_pool(nb::handle object) {
  const auto& pool = nb::cast<const SharedPool&>(object);
  Memory memory;
  memory.base = pool.base();
  memory.bytes = pool.bytes();
  memory.memory_fd = pool.fd();
  memory.owner = nb::borrow(object);
  return memory;
}

Memory from_buffer(nb::handle object) {
  Memory memory;
  // The view is the lender's export: a bytearray can't be resized, nor an mmap closed, while it is.
  memory.owner = nb::steal(PyMemoryView_FromObject(object.ptr()));
  if (!memory.owner.is_valid()) throw nb::python_error();
  const Py_buffer* view = PyMemoryView_GET_BUFFER(memory.owner.ptr());
  if (PyBuffer_IsContiguous(view, 'C') == 0) {
    refuse("memory: the buffer is not contiguous (C order), and pages are addressed back to back");
  }
  memory.base = static_cast<std::byte*>(view->buf);
  memory.bytes = static_cast<std::uint64_t>(view->len);
  memory.readonly = view->readonly != 0;
  return memory;
}

bool is_contiguous(const nb::ndarray<nb::ro>& array) {
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

Memory from_dlpack(nb::handle object) {
  Memory memory;
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, false)) {
    memory.array = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast(object, memory.array, false)) {
    memory.readonly = true;
  } else {
    PyErr_Clear();
    refuse(fmt::format("memory: {} has __dlpack__ and gives no array through it",
                       nb::type_name(object.type()).c_str()));
  }
  if (!is_contiguous(memory.array)) {
    refuse("memory: the array is not contiguous (C order), and pages are addressed back to back");
  }
  memory.base = static_cast<std::byte*>(const_cast<void*>(memory.array.data()));
  memory.bytes = memory.array.nbytes();
  const nb::object device = object.attr("__dlpack_device__")();
  const auto told = to_number<std::int32_t>(device[0], "__dlpack_device__()[0]");
  const bool on_host = is_host_device(told) && is_host_device(memory.array.device_type());
  memory.kind = on_host ? MemoryKind::kHost : MemoryKind::kDevice;
  return memory;
}

Memory lend(nb::handle object) {
  if (nb::isinstance<nb::tuple>(object)) return from_pointer(object);
  if (nb::isinstance<SharedPool>(object)) return from_pool(object);
  if (PyObject_CheckBuffer(object.ptr()) != 0) return from_buffer(object);
  if (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__")) {
    return from_dlpack(object);
  }
  refuse_type(fmt::format(
      "memory: {} is neither (pointer, bytes) nor an object with a buffer or with __dlpack__",
      nb::type_name(object.type()).c_str()));
}

}  // namespace

Memory to_memory(nb::handle object) {
  Memory memory = lend(object);
  if (memory.bytes == 0) refuse("memory: it has no bytes");
  return memory;
}

}  // namespace kvferry::python
