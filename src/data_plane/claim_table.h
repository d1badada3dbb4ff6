// Which ranges of one life of a grant slot have been taken, by which ticket, and how each of them
// ended. Not thread-safe: the slot's lock is held around every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kvferry/ids.h"

namespace kvferry::data_plane {

// A write as the target sees it, before anything of it was checked.
struct IncomingWrite {
  TicketId ticket;
  RegionId region;
  std::uint32_t item = 0;
  std::uint64_t offset_in_item = 0;
  std::uint64_t length = 0;
};

class ClaimTable {
 public:
  enum class State : std::uint8_t { kCopying, kLanded, kTorn, kRefused };
  enum class Take : std::uint8_t { kTaken, kKnownTicket, kOverlap, kFull };

  // max_claims bounds the memory that a writer of tiny ranges can make this table use.
  explicit ClaimTable(std::size_t max_claims) : max_claims_(max_claims) {}

  // The caller has checked that the range lies within the grant, so that its end can't overflow.
  Take take(const IncomingWrite& write);
  // Ends a claim that is being copied. kRefused gives the range back, since no byte of it was
  // touched.
  void settle(TicketId ticket, State state);
  // How the ticket stands; nothing when it was never claimed here.
  std::optional<State> find(TicketId ticket) const;

 private:
  struct Claim {
    std::uint64_t place = 0;  // region and item
    std::uint64_t begin = 0;
    State state = State::kCopying;
  };
  struct Interval {
    std::uint64_t begin;
    std::uint64_t end;
  };

  static std::uint64_t place_of(const IncomingWrite& write) {
    return (std::uint64_t{write.region.value()} << 32) | write.item;
  }

  std::size_t max_claims_;
  std::unordered_map<TicketId, Claim> claims_;
  std::unordered_map<std::uint64_t, std::vector<Interval>> taken_;  // sorted, disjoint
};

}  // namespace kvferry::data_plane
