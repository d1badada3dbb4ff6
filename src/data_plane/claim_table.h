// Which ranges of one life of a grant slot have been taken, by which ticket, and how each of them
// ended. Not thread-safe: the slot's lock is held around every call.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
  using ClaimId = std::size_t;

  // max_claims bounds the memory that a writer of tiny ranges can make this table use; places is
  // how many items it may claim ranges of.
  ClaimTable(std::size_t max_claims, std::size_t places);

  // place: which of the items. The caller has checked that the range lies within the grant, so that
  // its end can't overflow. `claim` is set when the range was taken.
  Take take(TicketId ticket, std::size_t place, std::uint64_t begin, std::uint64_t length,
            ClaimId& claim);
  // Ends a claim that is being copied. kRefused gives the range back, since no byte of it was
  // touched.
  void settle(ClaimId claim, State state);
  // How the ticket stands; nothing when it was never claimed here.
  std::optional<State> find(TicketId ticket) const;

 private:
  struct Interval {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  struct Claim {
    Interval range;
    std::size_t place = 0;
    State state = State::kCopying;
  };
  // What of one item is taken. Most writes are a whole page, so one interval needs no list.
  class TakenRanges {
   public:
    // False when some byte of the interval is taken.
    bool add(Interval interval);
    void remove(std::uint64_t begin);

   private:
    Interval first_;                               // empty: none
    std::unique_ptr<std::vector<Interval>> rest_;  // sorted, disjoint
  };

  std::size_t max_claims_;
  // Claims in the order of their taking, and which ticket has which: going through a frame, all but
  // the look-up of the ticket is next to what was touched last.
  std::vector<Claim> claims_;
  boost::unordered_flat_map<std::uint64_t, std::uint32_t> by_ticket_;
  std::vector<TakenRanges> taken_;  // by place
};

}  // namespace kvferry::data_plane
