// JSON bodies of SGLang's bootstrap routes. The one unit behind this header knows the JSON library.
// Values are read as Python reads them where SGLang converts (int("16") is 16), and refused where
// Python would raise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dialect/sglang/sglang_registry.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

// PUT /route. Fails with kMalformed; the text names the key.
Result<RankRow> parse_rank_row(std::string_view body);
// As SGLang 0.5.23's prefill ranks send it.
std::string rank_row_json(const RankRow& row);

// POST /register_dp_rank.
struct RoomRank {
  std::int64_t room = 0;
  std::int64_t dp_rank = 0;
};
Result<RoomRank> parse_room_rank(std::string_view body);

// POST /query_dp_ranks.
Result<std::vector<std::int64_t>> parse_rooms(std::string_view body);
std::string rooms_json(const std::vector<std::int64_t>& rooms);

// The keys of 0.5.23 and no other: its decode, and older ones, refuse a topology with a key that
// they don't know. Members that decode computes are null, as SGLang's own server sends them.
std::string topology_json(const Topology& topology);
// As a newer server may send it: keys that are not known are let pass. Fails with kMalformed; the
// text names the key.
Result<Topology> parse_topology(std::string_view body);
std::string address_json(const RankAddress& address);
// Fails with kMalformed; the text names the key.
Result<RankAddress> parse_address(std::string_view body);
std::string room_ranks_json(const std::vector<RoomRank>& rooms);
// Fails with kMalformed.
Result<std::vector<RoomRank>> parse_room_ranks(std::string_view body);

}  // namespace kvferry::sglang
