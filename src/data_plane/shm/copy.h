// Copies out of a peer's pool into pages: both ends cold, since pools are far larger than caches.
// There, stores that bypass the caches win over memcpy, which first reads each line that it is
// about to overwrite; and with small pages, asking for the next page's first lines while this one
// is copied hides the wait for its address and its first bytes. Where the processor has no such
// stores (other than x86-64, or without AVX2) this is memcpy.
//
// Below kStreamBytes memcpy is used: side data is small and read at once, so it had better stay in
// the caches.
//
// When a function returns, its bytes are visible to whoever synchronizes with this thread, as after
// memcpy.
#pragma once

#include <cstddef>
#include <span>

namespace kvferry::data_plane::shm {

inline constexpr std::size_t kStreamBytes = 1'024;

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t n = 0;  // bytes
};

// The ends of a copy may not overlap; alignment is free.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t n);
// In their order. Faster than one by one when they are small.
void copy_batch(std::span<const Copy> copies);

}  // namespace kvferry::data_plane::shm
