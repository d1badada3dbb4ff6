#include "sim/fabric_claims.h"

namespace kvferry::sim {

bool FabricClaims::take(const layout::Write& write) {
  const Item item{write.target_region, write.target_item};
  const std::uint64_t begin = write.offset_in_item;
  const std::uint64_t end = begin + write.length;
  const auto after = taken_.lower_bound({item, begin});
  const bool hits_next =
      after != taken_.end() && after->first.first == item && after->first.second < end;
  bool hits_previous = false;
  if (after != taken_.begin()) {
    const auto before = std::prev(after);
    hits_previous = before->first.first == item && before->second > begin;
  }
  const bool is_free = !hits_next && !hits_previous;
  tickets_.emplace(write.ticket, is_free ? State::kCopying : State::kRefused);
  if (is_free) {
    taken_.emplace(Start{item, begin}, end);
  }
  return is_free;
}

void FabricClaims::settle(const layout::Write& write, State state) {
  const auto found = tickets_.find(write.ticket);
  if (found == tickets_.end() || found->second != State::kCopying) {
    return;
  }
  found->second = state;
  if (state == State::kRefused) {
    taken_.erase({{write.target_region, write.target_item}, write.offset_in_item});
  }
}

std::optional<FabricClaims::State> FabricClaims::find(TicketId ticket) const {
  const auto found = tickets_.find(ticket);
  return found == tickets_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace kvferry::sim
