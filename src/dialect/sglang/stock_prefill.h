// What a kvferry decode rank knows of one rank of a stock SGLang prefill server: where it listens,
// its place and the sizes of its groups, all from the server's registry. It travels as an address
// whose public key is no key but this knowledge as text: so the resolver, which asks the registry,
// and the translator, which the core has dial such an address, share nothing else. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/layout_shape.h"
#include "base/peer_id.h"
#include "dialect/sglang/messages.h"
#include "dialect/sglang/rank_mapping.h"
#include "kvferry/status.h"
#include "layout/copy_plan.h"

namespace kvferry::sglang {

struct PrefillRank {
  RankEndpoint endpoint;  // of its PULL socket
  std::string registry;   // host:port of the bootstrap server that listed it
  std::uint32_t dp_rank = 0;
  PrefillShape shape;
  PrefillCoordinates place;
  std::uint32_t page_tokens = 0;

  // As in its statuses and acknowledgements.
  std::uint32_t number() const { return prefill_rank_id(shape, place); }
  // Ranks of one replica of one server; statuses of others are told apart by nothing.
  bool is_beside(const PrefillRank& other) const {
    return registry == other.registry && dp_rank == other.dp_rank && shape == other.shape;
  }
  friend bool operator==(const PrefillRank&, const PrefillRank&) = default;
};

// No field may hold a space; registries and endpoints don't.
PeerAddress to_address(const PrefillRank& rank);
// None for every address that to_address() does not make.
std::optional<PrefillRank> prefill_rank_of(const PeerAddress& address);

// A pair of a prefill rank and this decode rank.
struct StockPairing {
  RankMapping mapping;  // of the whole server
  // The prefill rank's, as a kvferry rank in its place would tell it. Its pool is taken to be as
  // large as ours: a registry does not say how large it is.
  LayoutShape layout;
  bool is_dummy = false;  // it only has to know the rooms
  // What it writes into a page and into an aux slot here; of a dummy nothing.
  std::vector<layout::ItemSlice> page_slices;
  std::vector<layout::ItemSlice> aux_slices;
};

// Which ranks a decode rank with this layout asks. Refuses what map_ranks() refuses, and what the
// dialect does not serve: KV spread over CP ranks, sharded KV, PP sizes that differ, heads that
// several prefill ranks hold. The text names the sizes.
Result<RankMapping> map_stock(const PrefillShape& shape, const LayoutShape& own);
// As above, and kLayoutMismatch when the two can't exchange pages, with field and both values.
Result<StockPairing> pair_with(const PrefillRank& rank, const LayoutShape& own);

}  // namespace kvferry::sglang
