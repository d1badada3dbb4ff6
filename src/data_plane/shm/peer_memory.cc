#include "data_plane/shm/peer_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <string>
#include <utility>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; the C library's headers may be older
#endif

namespace kvferry::data_plane::shm {
namespace {

std::string name_of(PeerMemory::Use use) {
  return use == PeerMemory::Use::kRing ? "shared ring: " : "shared pool: ";
}

tl::unexpected<Failure> refused(PeerMemory::Use use, const std::string& why) {
  return fail(FailureCode::kInvalidArgument, name_of(use) + why, FailureWhere::kPeer);
}

Status check_seals(int fd, PeerMemory::Use use) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    return refused(use,
                   "the file is not a memfd, so nothing keeps its owner from truncating it; "
                   "take the memory from kvferry::SharedPool or memfd_create("
                   "MFD_ALLOW_SEALING)");
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return refused(use,
                   "the memfd lacks F_SEAL_SHRINK; its owner could truncate it and reading "
                   "it would kill this process with SIGBUS");
  }
  if (use == PeerMemory::Use::kPool && (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) == 0) {
    return refused(use,
                   "the memfd lacks F_SEAL_FUTURE_WRITE (or F_SEAL_WRITE); whoever is "
                   "handed the descriptor could change pages while they are copied");
  }
  return {};
}

// Huge pages that were not reserved can run out at any read.
Status secure_huge_pages(void* base, std::uint64_t bytes, PeerMemory::Use use) {
  if (::madvise(base, bytes, MADV_POPULATE_READ) == 0) return {};
  const std::string reason = errno_text("madvise(MADV_POPULATE_READ)");
  return refused(use,
                 "the host could not provide its huge pages, and reading one that is missing "
                 "would kill this process with SIGBUS (see vm.nr_hugepages; needs Linux "
                 "5.14): " +
                     reason);
}

}  // namespace

Result<PeerMemory> PeerMemory::map(Fd fd, Use use, std::uint64_t min_bytes) {
  if (Status sealed = check_seals(fd.get(), use); !sealed) return tl::unexpected(sealed.error());
  struct stat file {};
  struct statfs system {};
  if (::fstat(fd.get(), &file) != 0 || ::fstatfs(fd.get(), &system) != 0) {
    return fail(FailureCode::kOperatingSystem, name_of(use) + errno_text("fstat"));
  }
  const auto bytes = static_cast<std::uint64_t>(file.st_size);
  if (bytes == 0 || bytes < min_bytes) {
    return refused(use, "the memfd has " + std::to_string(bytes) + " bytes where at least " +
                            std::to_string(min_bytes) + " are needed");
  }
  const bool huge = static_cast<std::uint64_t>(system.f_type) == HUGETLBFS_MAGIC;
  if (huge && use == Use::kRing) {
    return refused(use,
                   "the memfd has huge pages, which its owner could give back and the host "
                   "then fail to provide again; use normal pages");
  }
  void* base = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) {
    return fail(FailureCode::kOperatingSystem,
                name_of(use) + errno_text("mmap") + ", " + std::to_string(bytes) + " bytes");
  }
  PeerMemory memory(static_cast<const std::byte*>(base), bytes);
  if (huge) {
    if (Status secured = secure_huge_pages(base, bytes, use); !secured) {
      return tl::unexpected(secured.error());
    }
  }
  return memory;
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PeerMemory& PeerMemory::operator=(PeerMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PeerMemory::~PeerMemory() {
  if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), bytes_);  // NOLINT(*-const-cast)
}

}  // namespace kvferry::data_plane::shm
