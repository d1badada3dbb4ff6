// The registry's table: ranks, addresses, keys and leases. Pure; the bootstrap service drives it
// with its clock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/instant.h"
#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::core {

// What a rank registers. Its owner signs it; the service passes the signature on to readers.
struct RegistryRow {
  Role role = Role::kPrefill;
  std::string instance;
  RankCoordinates rank;
  std::string endpoint;    // host:port of the control link
  std::string public_key;  // Z85, empty in plain mode
  Incarnation incarnation;
  EngineEpoch engine_epoch;
  std::string signature;  // hexadecimal HMAC of the row by its owner, empty without a token
  friend bool operator==(const RegistryRow&, const RegistryRow&) = default;
};

struct RegistryLimits {
  std::uint32_t max_rows = 65'536;
  std::uint32_t max_superseded = 65'536;
};

class BootstrapRegistry {
 public:
  explicit BootstrapRegistry(RegistryLimits limits) : limits_(limits) {}

  // Registers or renews until now + lease. A rank (role, instance, coordinates) has one owner:
  // another incarnation takes over when the lease has run out or when it comes from the same
  // endpoint (a restart), and the former incarnation is remembered as superseded and refused from
  // then on; otherwise kConflict names both endpoints.
  Status put(const RegistryRow& row, Instant now, Duration lease);
  // Only the owner's incarnation removes its row.
  Status remove(const RegistryRow& row, Instant now);

  struct Query {
    std::optional<Role> role;
    std::optional<std::string> instance;
    std::optional<std::uint32_t> dp_rank;
  };
  // Live rows in order of role, instance, dp, pp, tp rank.
  std::vector<RegistryRow> find(const Query& query, Instant now) const;
  std::size_t size(Instant now) const;

 private:
  struct Key {
    Role role;
    std::string instance;
    std::uint32_t dp_rank, pp_rank, tp_rank;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Entry {
    RegistryRow row;
    Instant expires;
  };
  static Key key_of(const RegistryRow& row);
  void supersede(Incarnation incarnation);
  void drop_expired(Instant now);

  RegistryLimits limits_;
  std::map<Key, Entry> entries_;
  std::unordered_set<Incarnation> superseded_;
  std::deque<Incarnation> superseded_order_;
};

}  // namespace kvferry::core
