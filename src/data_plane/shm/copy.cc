#include "data_plane/shm/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvferry::data_plane::shm {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kLineBytes = 64;
// The hardware prefetcher has found the stream by then; more of them only evict each other.
constexpr std::size_t kLinesAhead = 8;

bool has_streaming_stores() { return __builtin_cpu_supports("avx2") != 0; }

// The caller fences. Whole lines go past the caches; what is left at both ends of the target does
// not, since a line that is streamed in parts costs more than one that is copied.
__attribute__((target("avx2"))) void stream(std::byte* to, const std::byte* from, std::size_t n) {
  constexpr std::size_t kStep = 2 * kLineBytes;
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(to) % kLineBytes;
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + kStep <= n; i += kStep) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  std::memcpy(to + i, from + i, n - i);
}

// Always inline: gcc takes a function that does nothing but prefetch for one without effects and
// drops the calls.
[[gnu::always_inline]] inline void prefetch_start(const Copy& copy) {
  const std::size_t lines = copy.n / kLineBytes;
  for (std::size_t i = 0; i < lines && i < kLinesAhead; ++i) {
    __builtin_prefetch(copy.from + i * kLineBytes);
  }
}

void copy_one(std::byte* to, const std::byte* from, std::size_t n) {
  if (n < kStreamBytes) {
    std::memcpy(to, from, n);
  } else {
    stream(to, from, n);
  }
}

// Streamed stores are not ordered with later ones by themselves.
void fence_streams() { _mm_sfence(); }

#endif

void copy_plain(std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    if (copy.n > 0) std::memcpy(copy.to, copy.from, copy.n);
  }
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t n) {
  const Copy copy{to, from, n};
  copy_batch({&copy, 1});
}

void copy_batch(std::span<const Copy> copies) {
#if defined(__x86_64__)
  if (has_streaming_stores()) {
    for (std::size_t i = 0; i < copies.size(); ++i) {
      if (i + 1 < copies.size()) prefetch_start(copies[i + 1]);
      if (copies[i].n > 0) copy_one(copies[i].to, copies[i].from, copies[i].n);
    }
    fence_streams();
    return;
  }
#endif
  copy_plain(copies);
}

}  // namespace kvferry::data_plane::shm
