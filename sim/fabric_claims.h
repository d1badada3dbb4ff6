// Which ranges of one life of a grant slot were taken, by which ticket, and how each ended: the
// model of data_plane/claim_table.h, written anew so that a mistake in the one does not blind the
// other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "layout/write.h"

namespace kvferry::sim {

class FabricClaims {
 public:
  enum class State : std::uint8_t { kCopying, kLanded, kTorn, kRefused };

  // False when another ticket has taken any byte of the range; the ticket is then remembered as
  // refused.
  bool take(const layout::Write& write);
  // kRefused gives the range back: no byte of it was touched.
  void settle(const layout::Write& write, State state);
  std::optional<State> find(TicketId ticket) const;

 private:
  using Item = std::pair<RegionId, std::uint32_t>;
  using Start = std::pair<Item, std::uint64_t>;

  std::unordered_map<TicketId, State> tickets_;  // looked up, never walked
  std::map<Start, std::uint64_t> taken_;         // to the range's end
};

}  // namespace kvferry::sim
