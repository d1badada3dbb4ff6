#include "data_plane/claim_table.h"

#include <algorithm>

namespace kvferry::data_plane {
namespace {

// More room is made as it is needed: a grant may be far larger than what is written at a time.
constexpr std::size_t kMaxReserved = 16'384;

}  // namespace

ClaimTable::ClaimTable(std::size_t max_claims, std::size_t places)
    : max_claims_(std::min<std::size_t>(max_claims, ~std::uint32_t{0})), taken_(places) {
  const std::size_t reserved = std::min({max_claims, places, kMaxReserved});
  claims_.reserve(reserved);
  by_ticket_.reserve(reserved);
}

bool ClaimTable::TakenRanges::add(Interval interval) {
  if (first_.begin < interval.end && interval.begin < first_.end) return false;
  if (!rest_) {
    if (first_.begin == first_.end) {
      first_ = interval;
      return true;
    }
    rest_ = std::make_unique<std::vector<Interval>>();
  }
  const auto after =
      std::lower_bound(rest_->begin(), rest_->end(), interval.begin,
                       [](const Interval& other, std::uint64_t at) { return other.end <= at; });
  if (after != rest_->end() && after->begin < interval.end) return false;
  rest_->insert(after, interval);
  return true;
}

void ClaimTable::TakenRanges::remove(std::uint64_t begin) {
  if (first_.begin != first_.end && first_.begin == begin) {
    first_ = {};
  } else if (rest_) {
    std::erase_if(*rest_, [&](const Interval& interval) { return interval.begin == begin; });
  }
}

ClaimTable::Take ClaimTable::take(TicketId ticket, std::size_t place, std::uint64_t begin,
                                  std::uint64_t length, ClaimId& claim) {
  if (claims_.size() >= max_claims_) {
    return by_ticket_.contains(ticket.value()) ? Take::kKnownTicket : Take::kFull;
  }
  const auto index = static_cast<std::uint32_t>(claims_.size());
  if (!by_ticket_.try_emplace(ticket.value(), index).second) return Take::kKnownTicket;
  const Interval range{begin, begin + length};
  const bool is_taken = taken_[place].add(range);
  // Remembered in any case, so that a second copy of a ticket that was refused is refused even when
  // the range became free.
  claims_.push_back({range, place, is_taken ? State::kCopying : State::kRefused});
  if (!is_taken) return Take::kOverlap;
  claim = index;
  return Take::kTaken;
}

void ClaimTable::settle(ClaimId claim, State state) {
  Claim& settled = claims_[claim];
  if (settled.state != State::kCopying) return;
  settled.state = state;
  if (state == State::kRefused) taken_[settled.place].remove(settled.range.begin);
}

std::optional<ClaimTable::State> ClaimTable::find(TicketId ticket) const {
  const auto found = by_ticket_.find(ticket.value());
  if (found == by_ticket_.end()) return std::nullopt;
  return claims_[found->second].state;
}

}  // namespace kvferry::data_plane
