// The digest that a write carries of its bytes, so that the target can tell whether they landed as
// they were sent: XXH3, 64 bits. It finds accidents (memory, network cards, drivers), not forgery.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace kvferry::data_plane {

std::uint64_t page_digest(std::span<const std::byte> bytes);

// The same of bytes that are read in parts.
class PageDigest {
 public:
  PageDigest();
  void add(std::span<const std::byte> part);
  std::uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace kvferry::data_plane
