#include "data_plane/shm/source_view.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "data_plane/fd.h"

namespace kvferry::data_plane::shm {
namespace {

// As many as one frame may have places, and the kernel's limit is 1,024.
constexpr std::size_t kMaxRemoteParts = 512;

// An address of the other process, which nobody follows here.
iovec remote_part(std::uint64_t address, std::uint64_t bytes) {
  return {reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr)
}

Status try_probe(const AttachProbe& probe, pid_t pid) {
  if (pid == 0) {
    return fail(FailureCode::kPeerUnreachable,
                "its regions are not in a SharedPool, and its process is in another pid namespace");
  }
  std::uint64_t value = 0;
  iovec local{&value, sizeof value};
  iovec remote = remote_part(probe.address, sizeof value);
  if (::process_vm_readv(pid, &local, 1, &remote, 1, 0) != sizeof value) {
    return fail(FailureCode::kPeerUnreachable,
                "its regions are not in a SharedPool, and they can't be read across processes: " +
                    errno_text("process_vm_readv") +
                    " (a container's seccomp profile or the ptrace scope forbids it)");
  }
  if (value != probe.value) {
    return fail(FailureCode::kPeerUnreachable,
                "process number " + std::to_string(pid) + " is another process here");
  }
  return {};
}

}  // namespace

Result<SourceView> SourceView::open(const Attach& attach, std::vector<Fd> pools, pid_t pid) {
  SourceView view;
  view.pid_ = pid;
  std::vector<std::uint64_t> needed(pools.size(), 1);
  bool is_any_remote = false;
  for (const AttachRegion& region : attach.regions) {
    if (region.pool == AttachRegion::kRemote) {
      is_any_remote = true;
    } else {
      needed[region.pool] = std::max(needed[region.pool], region.place + region.bytes);
    }
  }
  if (is_any_remote) {
    if (auto readable = try_probe(attach.probe, pid); !readable) {
      return tl::unexpected(readable.error());
    }
  }
  for (std::size_t i = 0; i < pools.size(); ++i) {
    auto mapped = PeerMemory::map(std::move(pools[i]), PeerMemory::Use::kPool, needed[i]);
    if (!mapped) return tl::unexpected(mapped.error());
    view.pools_.push_back(std::move(*mapped));
  }
  for (const AttachRegion& region : attach.regions) {
    Extent extent{nullptr, region.place, region.bytes};
    if (region.pool != AttachRegion::kRemote) {
      extent.mapped = view.pools_[region.pool].base() + region.place;
    }
    view.extents_.push_back(extent);
  }
  return view;
}

bool SourceView::find(RegionId region, std::uint64_t offset, std::uint64_t bytes,
                      SourcePiece& piece) const {
  if (region.value() >= extents_.size()) return false;
  const Extent& extent = extents_[region.value()];
  if (offset > extent.bytes || bytes > extent.bytes - offset) return false;
  piece = {extent.mapped == nullptr ? nullptr : extent.mapped + offset, extent.remote + offset,
           bytes};
  return true;
}

void skip(std::span<SourcePiece> pieces, std::uint64_t bytes) {
  for (SourcePiece& piece : pieces) {
    const std::uint64_t step = std::min(bytes, piece.bytes);
    if (piece.mapped != nullptr) piece.mapped += step;
    piece.remote += step;
    piece.bytes -= step;
    bytes -= step;
    if (bytes == 0) return;
  }
}

std::ptrdiff_t SourceView::copy(std::span<SourcePiece> pieces, std::span<const iovec> places) {
  while (!pieces.empty() && pieces.front().bytes == 0) pieces = pieces.subspan(1);
  if (pieces.empty()) return 0;
  return pieces.front().mapped == nullptr ? copy_remote(pieces, places)
                                          : copy_mapped(pieces, places);
}

std::ptrdiff_t SourceView::copy_mapped(std::span<SourcePiece> pieces,
                                       std::span<const iovec> places) {
  copies_.clear();
  std::uint64_t copied = 0;
  auto piece = pieces.begin();
  for (const iovec& place : places) {
    auto* to = static_cast<std::byte*>(place.iov_base);
    std::uint64_t left = place.iov_len;
    while (left != 0 && piece != pieces.end() && piece->mapped != nullptr) {
      const std::uint64_t step = std::min(left, piece->bytes);
      if (step != 0) copies_.push_back({to, piece->mapped, step});
      piece->mapped += step;
      piece->bytes -= step;
      to += step;
      left -= step;
      copied += step;
      if (piece->bytes == 0) ++piece;
    }
  }
  copy_batch(copies_);
  return static_cast<std::ptrdiff_t>(copied);
}

std::ptrdiff_t SourceView::copy_remote(std::span<SourcePiece> pieces,
                                       std::span<const iovec> places) {
  remote_parts_.clear();
  std::uint64_t wanted = 0;
  for (const iovec& place : places) wanted += place.iov_len;
  for (const SourcePiece& piece : pieces) {
    if (piece.mapped != nullptr || wanted == 0 || remote_parts_.size() == kMaxRemoteParts) break;
    const std::uint64_t step = std::min(wanted, piece.bytes);
    remote_parts_.push_back(remote_part(piece.remote, step));
    wanted -= step;
  }
  const ssize_t got = ::process_vm_readv(pid_, places.data(), places.size(), remote_parts_.data(),
                                         remote_parts_.size(), 0);
  if (got <= 0) return -1;
  skip(pieces, static_cast<std::uint64_t>(got));
  return got;
}

}  // namespace kvferry::data_plane::shm
