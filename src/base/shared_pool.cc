#include "kvferry/shared_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace kvferry {
namespace {

constexpr std::uint64_t kHugePageBytes = 2U << 20;

tl::unexpected<Failure> system_failure(const std::string& what) {
  const std::string reason = std::strerror(errno);
  return fail(FailureCode::kOperatingSystem, "shared pool: " + what + ": " + reason);
}

}  // namespace

Result<SharedPool> SharedPool::create(std::uint64_t bytes, Pages pages) {
  const bool huge = pages == Pages::kHuge;
  const std::uint64_t unit =
      huge ? kHugePageBytes : static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  // Above this neither the rounding nor a file offset fits.
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;
  if (bytes == 0 || bytes > kMaxBytes) {
    return fail(FailureCode::kInvalidArgument,
                "shared pool: " + std::to_string(bytes) + " bytes is not from 1 to 2^62");
  }
  SharedPool pool;
  pool.bytes_ = (bytes + unit - 1) / unit * unit;
  const std::string size = std::to_string(pool.bytes_) + " bytes";
  pool.fd_ =
      ::memfd_create("kvferry-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0U));
  if (pool.fd_ < 0) return system_failure("memfd_create");
  if (::ftruncate(pool.fd_, static_cast<off_t>(pool.bytes_)) != 0) {
    return system_failure("ftruncate to " + size);
  }
  void* base = ::mmap(nullptr, pool.bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, pool.fd_, 0);
  if (base == MAP_FAILED) {
    return system_failure("mmap of " + size + (huge ? " in huge pages (see vm.nr_hugepages)" : ""));
  }
  pool.base_ = static_cast<std::byte*>(base);
  // After the writable mapping above: this one stays, new ones are refused.
  if (::fcntl(pool.fd_, F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return system_failure("fcntl(F_ADD_SEALS)");
  }
  return pool;
}

SharedPool::SharedPool(SharedPool&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

SharedPool& SharedPool::operator=(SharedPool&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedPool::~SharedPool() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace kvferry
