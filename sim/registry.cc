#include "sim/registry.h"

#include <utility>

#include "sim/world.h"

namespace kvferry::sim {

void Registry::registered(const Node& node) {
  if (node.place().role != Role::kPrefill) {
    return;
  }
  const core::PeerRow row = node.row();
  for (core::PeerRow& known : rows_) {
    if (known.address.endpoint == row.address.endpoint) {
      former_.push_back(std::exchange(known, row));
      return;
    }
  }
  rows_.push_back(row);
}

std::vector<core::PeerRow> Registry::rows_of(const std::string& instance) {
  const auto strikes = [this](Fault fault) {
    return world_.faults.strikes(fault, prng_, world_.profile.rate_of(fault));
  };
  const bool empty = strikes(Fault::kRegistryEmpty);
  const bool stale = strikes(Fault::kRegistryStale);
  const bool missing = strikes(Fault::kRegistryMissing);
  const bool twice = strikes(Fault::kRegistryDouble);
  const std::uint64_t pick = prng_.next();
  std::vector<core::PeerRow> rows;
  for (const core::PeerRow& row : rows_) {
    if (row.instance == instance && !empty) {
      rows.push_back(row);
    }
  }
  if (rows.empty()) {
    return rows;
  }
  core::PeerRow& chosen = rows[pick % rows.size()];
  if (stale) {
    for (const core::PeerRow& old : former_) {
      if (old.address.endpoint == chosen.address.endpoint) {
        chosen = old;
      }
    }
  }
  if (twice) {
    rows.push_back(chosen);
  }
  if (missing) {
    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(pick % rows.size()));
  }
  return rows;
}

// The registry client of the runtime answers in time or with a failure, and calls an empty list
// one.
void Registry::ask(Node& decode, const core::ResolvePrefill& query) {
  const bool slow = world_.faults.strikes(Fault::kRegistrySlow, prng_,
                                          world_.profile.rate_of(Fault::kRegistrySlow));
  const Duration delay =
      milliseconds(1) + milliseconds(slow
                                         ? prng_.below(world_.profile.options.http_total_timeout_ms)
                                         : prng_.below(3));
  core::PrefillResolved answer{query.receiver, {}};
  if (down_) {
    answer.rows = fail(FailureCode::kBootstrapFailed, "the registry does not answer");
  } else if (auto rows = rows_of(query.instance); !rows.empty()) {
    answer.rows = std::move(rows);
  } else {
    answer.rows = fail(FailureCode::kPrefillUnknown, "no such instance is registered");
  }
  decode.receive_after(delay, std::move(answer));
}

}  // namespace kvferry::sim
