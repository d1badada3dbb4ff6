#include "data_plane/page_digest.h"

#include <xxhash.h>

#include <new>

namespace kvferry::data_plane {

std::uint64_t page_digest(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

PageDigest::PageDigest() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void PageDigest::add(std::span<const std::byte> part) {
  XXH3_64bits_update(state_.get(), part.data(), part.size());
}

std::uint64_t PageDigest::value() const { return XXH3_64bits_digest(state_.get()); }

void PageDigest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace kvferry::data_plane
