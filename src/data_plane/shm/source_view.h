// The regions of a source as its target reads them: mapped pools, or another process's memory.
//
// Threads: one.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data_plane/shm/attach.h"
#include "data_plane/shm/copy.h"
#include "data_plane/shm/peer_memory.h"
#include "kvferry/ids.h"

namespace kvferry::data_plane::shm {

// Where one write's bytes are to be read.
struct SourcePiece {
  const std::byte* mapped = nullptr;  // in this process; null: read by process_vm_readv
  std::uint64_t remote = 0;           // address in the source's process
  std::uint64_t bytes = 0;
};

class SourceView {
 public:
  // Maps the pools and, where a region lies elsewhere, tries to read the probe of process `pid`.
  // The failure says in words for people why these two processes can't share memory.
  static Result<SourceView> open(const Attach& attach, std::vector<Fd> pools, pid_t pid);

  // Nothing when the range is not inside the region.
  bool find(RegionId region, std::uint64_t offset, std::uint64_t bytes, SourcePiece& piece) const;

  // Copies from the pieces, one after another, into the places, as far as both go; moves the
  // pieces' starts past what was copied. The byte count, or -1 when the source's memory can't be
  // read.
  std::ptrdiff_t copy(std::span<SourcePiece> pieces, std::span<const iovec> places);

 private:
  struct Extent {
    const std::byte* mapped = nullptr;
    std::uint64_t remote = 0;
    std::uint64_t bytes = 0;
  };
  SourceView() = default;
  std::ptrdiff_t copy_mapped(std::span<SourcePiece> pieces, std::span<const iovec> places);
  std::ptrdiff_t copy_remote(std::span<SourcePiece> pieces, std::span<const iovec> places);

  std::vector<PeerMemory> pools_;
  std::vector<Extent> extents_;
  pid_t pid_ = 0;
  std::vector<Copy> copies_;
  std::vector<iovec> remote_parts_;
};

// Steps over bytes without reading them; no more than the pieces have.
void skip(std::span<SourcePiece> pieces, std::uint64_t bytes);

}  // namespace kvferry::data_plane::shm
