// The state behind SGLang's bootstrap routes: which prefill ranks there are and where they listen,
// the sizes of their groups, and which DP rank has a room. Pure: time is an argument, nothing is
// sent. sglang_routes.h puts HTTP around it.
//
// As SGLang 0.5.23 does it: the first registration decides the sizes, page size and the like, later
// ones are accepted and only add their address; two fields must be equal everywhere. One thing is
// stricter: SGLang counts registrations, so that a rank that registers twice makes a server of two
// look complete; here distinct ranks count. Nothing expires but rooms; a prefill server that was
// restarted with other sizes needs a new registry (as SGLang's does).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/instant.h"

namespace kvferry::sglang {

struct RegistryLimits {
  std::uint32_t max_group = 65'536;   // members of one group
  std::uint64_t max_ranks = 65'536;   // of all groups together
  std::size_t max_rooms = 1'000'000;  // with a DP rank, remembered at one time
  // A room's DP rank is kept for one to two of these, as in SGLang.
  std::int64_t room_lifetime_s = 120;
};

struct GroupPlace {
  std::uint32_t size = 0;
  std::uint32_t rank = 0;
};

// What one prefill rank says of itself and of its server.
struct RankRow {
  GroupPlace tp;  // of attention, as cp and dp
  GroupPlace cp;  // context parallelism
  GroupPlace dp;
  GroupPlace pp;
  GroupPlace system_dp;  // of the whole server; its size is 1 when attention's counts
  std::string ip;
  std::uint16_t port = 0;         // of its PULL socket
  std::uint32_t page_tokens = 0;  // SGLang's page_size
  std::optional<std::string> kv_cache_dtype;
  std::optional<std::string> kv_layout;
  // dsv41_spec_layout: JSON with sorted keys, since it is only compared and passed on.
  std::optional<std::string> spec_layout;
  bool follows_room = true;  // load_balance_method is follow_bootstrap_room
  bool dsa_cache_layer_split = false;
  bool kv_cache_sharding = false;
  std::optional<std::uint16_t> http_port;  // of the server's API
  std::string allocation_policy = "early";
};

// The common part of all rows.
struct Topology {
  std::uint32_t tp_size = 0;
  std::uint32_t cp_size = 0;
  std::uint32_t dp_size = 0;
  std::uint32_t pp_size = 0;
  std::uint32_t page_tokens = 0;
  std::optional<std::string> kv_cache_dtype;
  std::optional<std::string> kv_layout;
  std::optional<std::string> spec_layout;
  bool follows_room = true;
  bool dsa_cache_layer_split = false;
  bool kv_cache_sharding = false;
  std::optional<std::uint16_t> http_port;
  std::string allocation_policy = "early";
};

struct RankAddress {
  std::string ip;
  std::uint16_t port = 0;
  friend bool operator==(const RankAddress&, const RankAddress&) = default;
};

// Text that names a place in the groups: dp, cp, tp, pp.
using RankKey = std::array<std::int64_t, 4>;

class SglangRegistry {
 public:
  enum class Put : std::uint8_t {
    kStored,
    kOtherSizes,  // stored; its sizes differ from the first row's, which count
    kOutside,     // not stored: its rank has no place in the first row's groups
    kLayout,      // refused: another dsv41_spec_layout
    kPolicy,      // refused: another decode_allocation_policy
    kImpossible,  // refused: a size of 0 or beyond the limits
  };

  explicit SglangRegistry(RegistryLimits limits = {}) : limits_(limits) {}

  Put put(const RankRow& row);
  // None before the first row. Whether it is complete is another question.
  const std::optional<Topology>& topology() const { return topology_; }
  bool is_ready() const;
  std::size_t rank_count() const { return ranks_.size(); }
  const RankAddress* find(const RankKey& key) const;

  // False: the table is full, and the room is not remembered.
  bool put_room(std::int64_t room, std::int64_t dp_rank, Instant now);
  std::optional<std::int64_t> dp_rank_of(std::int64_t room, Instant now);

 private:
  std::uint64_t expected_ranks() const;
  void take_first(const RankRow& row);
  void expire_rooms(Instant now);

  RegistryLimits limits_;
  std::optional<Topology> topology_;
  std::map<RankKey, RankAddress> ranks_;
  // Rooms of this period and of the one before.
  std::unordered_map<std::int64_t, std::int64_t> young_;
  std::unordered_map<std::int64_t, std::int64_t> old_;
  Instant period_begin_{};
};

}  // namespace kvferry::sglang
