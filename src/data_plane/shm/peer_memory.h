// Memory of another process, received as a memfd and mapped here to be read in place.
//
// The other process keeps its own descriptor, so nothing that it could still do to the file may
// hurt the reader. A file that can be truncated would: reading past its new end is SIGBUS, which
// ends this process. Therefore only sealed memfds are accepted; SharedPool makes such.
//
// Threads: map() from any; the accessors from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data_plane/fd.h"
#include "kvferry/status.h"

namespace kvferry::data_plane::shm {

class PeerMemory {
 public:
  enum class Use : std::uint8_t {
    kRing,  // sealed against shrinking, in normal pages
    kPool,  // sealed against new writable maps too: else a third process that is handed the
            // descriptor could change the pages while they are being copied
  };

  // Maps the whole file, read-only. Refused with what is missing and why it matters: a file that is
  // no memfd, a seal that is not there, fewer than min_bytes bytes, huge pages that the host could
  // fail to provide. The descriptor is closed in any case; the map stays.
  //
  // Pages are not faulted in (a pool may be larger than what its owner has touched), so the first
  // copy out of each costs a minor fault. Huge pages are: they may be exhausted when they are first
  // read, which again is SIGBUS.
  static Result<PeerMemory> map(Fd fd, Use use, std::uint64_t min_bytes);

  PeerMemory() = default;  // no memory
  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&& other) noexcept;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  // What it points to may change at any time, by the other process's hand: copy once, then check.
  const std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  PeerMemory(const std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}

  const std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace kvferry::data_plane::shm
