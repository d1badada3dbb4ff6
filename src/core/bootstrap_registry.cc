#include "core/bootstrap_registry.h"

#include <fmt/format.h>

#include <utility>

namespace kvferry::core {
namespace {

Status check_row(const RegistryRow& row) {
  const auto refuse = [](std::string_view what) {
    return fail(FailureCode::kInvalidArgument, fmt::format("registry row: {}", what));
  };
  if (row.instance.empty()) {
    return refuse("instance is empty");
  }
  if (row.endpoint.empty()) {
    return refuse("endpoint is empty");
  }
  if (row.incarnation.is_zero()) {
    return refuse("incarnation is zero");
  }
  const RankCoordinates& rank = row.rank;
  if (rank.tp_rank >= rank.tp_size || rank.pp_rank >= rank.pp_size ||
      rank.dp_rank >= rank.dp_size) {
    return refuse(fmt::format("rank tp {} of {}, pp {} of {}, dp {} of {} is outside its engine",
                              rank.tp_rank, rank.tp_size, rank.pp_rank, rank.pp_size, rank.dp_rank,
                              rank.dp_size));
  }
  return {};
}

std::string name_of(const RegistryRow& row) {
  return fmt::format("{} {} tp {} pp {} dp {}", to_string(row.role), row.instance, row.rank.tp_rank,
                     row.rank.pp_rank, row.rank.dp_rank);
}

}  // namespace

BootstrapRegistry::Key BootstrapRegistry::key_of(const RegistryRow& row) {
  return Key{row.role, row.instance, row.rank.dp_rank, row.rank.pp_rank, row.rank.tp_rank};
}

void BootstrapRegistry::supersede(Incarnation incarnation) {
  if (!superseded_.insert(incarnation).second) {
    return;
  }
  superseded_order_.push_back(incarnation);
  if (superseded_order_.size() > limits_.max_superseded) {
    superseded_.erase(superseded_order_.front());
    superseded_order_.pop_front();
  }
}

void BootstrapRegistry::drop_expired(Instant now) {
  std::erase_if(entries_, [now](const auto& entry) { return entry.second.expires <= now; });
}

Status BootstrapRegistry::put(const RegistryRow& row, Instant now, Duration lease) {
  if (Status status = check_row(row); !status) {
    return status;
  }
  if (superseded_.contains(row.incarnation)) {
    // The process was replaced while it was away; letting it in again would let a dead life's key
    // and address shadow its successor's.
    const auto successor = entries_.find(key_of(row));
    return fail(
        FailureCode::kConflict,
        fmt::format("{}: incarnation {} at {} was superseded{}", name_of(row),
                    row.incarnation.to_hex(), row.endpoint,
                    successor == entries_.end()
                        ? std::string()
                        : fmt::format(" by the one at {}", successor->second.row.endpoint)));
  }
  const auto found = entries_.find(key_of(row));
  if (found == entries_.end()) {
    // Rows whose lease has run out stay until their room is needed, so that whoever takes such a
    // rank over supersedes its former owner.
    if (entries_.size() >= limits_.max_rows) {
      drop_expired(now);
    }
    if (entries_.size() >= limits_.max_rows) {
      return fail(FailureCode::kTableFull,
                  fmt::format("the registry holds max_rows = {} rows", limits_.max_rows));
    }
    entries_.emplace(key_of(row), Entry{row, now + lease});
    return {};
  }
  Entry& entry = found->second;
  if (entry.row.incarnation != row.incarnation) {
    if (entry.expires > now && entry.row.endpoint != row.endpoint) {
      return fail(FailureCode::kConflict,
                  fmt::format("{} is registered by {} under a live lease, refused to {}",
                              name_of(row), entry.row.endpoint, row.endpoint));
    }
    supersede(entry.row.incarnation);
  }
  entry = Entry{row, now + lease};
  return {};
}

Status BootstrapRegistry::remove(const RegistryRow& row, Instant now) {
  const auto found = entries_.find(key_of(row));
  if (found == entries_.end()) {
    return {};  // gone already: leaving twice is no error
  }
  const Entry& entry = found->second;
  if (entry.row.incarnation != row.incarnation) {
    if (entry.expires <= now) {
      return {};
    }
    return fail(FailureCode::kConflict,
                fmt::format("{} belongs to the incarnation at {}, not to the one at {}",
                            name_of(row), entry.row.endpoint, row.endpoint));
  }
  entries_.erase(found);
  return {};
}

std::vector<RegistryRow> BootstrapRegistry::find(const Query& query, Instant now) const {
  std::vector<RegistryRow> rows;
  for (const auto& [key, entry] : entries_) {
    if (entry.expires <= now || (query.role && *query.role != key.role) ||
        (query.instance && *query.instance != key.instance) ||
        (query.dp_rank && *query.dp_rank != key.dp_rank)) {
      continue;
    }
    rows.push_back(entry.row);
  }
  return rows;
}

std::size_t BootstrapRegistry::size(Instant now) const {
  std::size_t live = 0;
  for (const auto& [key, entry] : entries_) {
    live += entry.expires > now ? 1 : 0;
  }
  return live;
}

}  // namespace kvferry::core
