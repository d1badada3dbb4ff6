// Memory for the pages of an engine that other processes of this host may read in place: a memfd,
// sealed so that nobody can shrink it and nobody else can map it writable. A prefill engine that
// keeps its regions in such a pool lets the shm transport copy straight out of it; regions in any
// other memory go through process_vm_readv or tcp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvferry/status.h"

namespace kvferry {

// Owns the mapping and the descriptor; both stay until it is destroyed, which must be after the
// KvManager that was given regions of it.
//
// Threads: the accessors from any thread.
class SharedPool {
 public:
  enum class Pages : std::uint8_t {
    kNormal,
    kHuge,  // from the huge pages that the host has set aside (vm.nr_hugepages)
  };

  // Maps at least `bytes` zeroed bytes, rounded up to whole pages; memory is taken when it is
  // touched, huge pages at once. A failure names what the host lacks.
  static Result<SharedPool> create(std::uint64_t bytes, Pages pages = Pages::kNormal);

  SharedPool(SharedPool&& other) noexcept;
  SharedPool& operator=(SharedPool&& other) noexcept;
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;
  ~SharedPool();

  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }
  // For Region::memory_fd; a region's Region::memory_fd_offset is its distance from base().
  int fd() const { return fd_; }

 private:
  SharedPool() = default;

  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace kvferry
