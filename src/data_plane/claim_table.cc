#include "data_plane/claim_table.h"

#include <algorithm>

namespace kvferry::data_plane {

ClaimTable::Take ClaimTable::take(const IncomingWrite& write) {
  if (claims_.contains(write.ticket)) return Take::kKnownTicket;
  if (claims_.size() >= max_claims_) return Take::kFull;
  const std::uint64_t begin = write.offset_in_item;
  const std::uint64_t end = begin + write.length;
  std::vector<Interval>& intervals = taken_[place_of(write)];
  const auto after = std::lower_bound(
      intervals.begin(), intervals.end(), begin,
      [](const Interval& interval, std::uint64_t position) { return interval.end <= position; });
  if (after != intervals.end() && after->begin < end) {
    // Remembered, so that a second copy of this ticket is refused even when the range became free.
    claims_.emplace(write.ticket, Claim{place_of(write), begin, State::kRefused});
    return Take::kOverlap;
  }
  intervals.insert(after, Interval{begin, end});
  claims_.emplace(write.ticket, Claim{place_of(write), begin, State::kCopying});
  return Take::kTaken;
}

void ClaimTable::settle(TicketId ticket, State state) {
  const auto found = claims_.find(ticket);
  if (found == claims_.end() || found->second.state != State::kCopying) return;
  found->second.state = state;
  if (state != State::kRefused) return;
  const auto taken = taken_.find(found->second.place);
  if (taken == taken_.end()) return;
  std::erase_if(taken->second,
                [&](const Interval& interval) { return interval.begin == found->second.begin; });
}

std::optional<ClaimTable::State> ClaimTable::find(TicketId ticket) const {
  const auto found = claims_.find(ticket);
  if (found == claims_.end()) return std::nullopt;
  return found->second.state;
}

}  // namespace kvferry::data_plane
