// Memories that tests hand over as if a peer had sent them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "data_plane/fd.h"
#include "data_plane/shm/peer_memory.h"

namespace kvferry::data_plane::shm {

inline Fd duplicate(int fd) { return Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

// A memfd of that size with these seals, not mapped; closed (-1) when the host has none of that
// kind.
inline Fd make_memfd(std::uint64_t bytes, int seals, unsigned flags = 0) {
  Fd fd(::memfd_create("kvferry-test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd.is_open() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return {};
  if (seals != 0 && ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return {};
  return fd;
}

inline PeerMemory map_ring(int fd) {
  return std::move(PeerMemory::map(duplicate(fd), PeerMemory::Use::kRing, 1).value());
}

}  // namespace kvferry::data_plane::shm
