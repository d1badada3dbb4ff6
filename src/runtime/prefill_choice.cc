#include "runtime/prefill_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace kvferry::runtime {
namespace {

constexpr std::size_t kMaxNamed = 8;

Result<std::string> choose_instance(std::span<const core::RegistryRow> rows,
                                    const core::ResolvePrefill& query) {
  std::set<std::string> instances;
  for (const core::RegistryRow& row : rows) {
    if (row.role == Role::kPrefill) {
      instances.insert(row.instance);
    }
  }
  if (query.instance.empty() ? instances.size() == 1 : instances.contains(query.instance)) {
    return query.instance.empty() ? *instances.begin() : query.instance;
  }
  const std::size_t count = instances.size();
  while (instances.size() > kMaxNamed) {
    instances.erase(std::prev(instances.end()));
  }
  return fail(
      FailureCode::kPrefillUnknown,
      fmt::format("registry {} lists {} prefill instances ({}{}), {}", query.bootstrap_address,
                  count, fmt::join(instances, ", "), count > kMaxNamed ? ", ..." : "",
                  query.instance.empty() ? std::string("none of which was named")
                                         : fmt::format("not '{}'", query.instance)),
      FailureWhere::kPeer, query.bootstrap_address);
}

// (pp, tp) -> row.
using Ranks = std::map<std::pair<std::uint32_t, std::uint32_t>, const core::RegistryRow*>;

std::string missing_ranks(const Ranks& ranks, std::uint32_t pp_size, std::uint32_t tp_size) {
  std::vector<std::string> missing;
  for (std::uint32_t pp = 0; pp < pp_size && missing.size() < kMaxNamed; ++pp) {
    for (std::uint32_t tp = 0; tp < tp_size && missing.size() < kMaxNamed; ++tp) {
      if (!ranks.contains({pp, tp})) {
        missing.push_back(pp_size > 1 ? fmt::format("pp {} tp {}", pp, tp)
                                      : fmt::format("tp {}", tp));
      }
    }
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

}  // namespace

core::PeerRow to_peer_row(const core::RegistryRow& row) {
  return core::PeerRow{PeerAddress{row.endpoint, row.public_key}, row.instance, row.rank,
                       row.engine_epoch};
}

Result<std::vector<core::PeerRow>> choose_prefill(std::span<const core::RegistryRow> rows,
                                                  const core::ResolvePrefill& query) {
  const Result<std::string> instance = choose_instance(rows, query);
  if (!instance) {
    return tl::unexpected(instance.error());
  }
  const auto refuse = [&](FailureCode code, std::string what) {
    return fail(code,
                fmt::format("prefill {} dp {} at registry {}: {}", *instance, query.dp_rank,
                            query.bootstrap_address, what),
                FailureWhere::kPeer, query.bootstrap_address);
  };
  Ranks ranks;
  for (const core::RegistryRow& row : rows) {
    if (row.role == Role::kPrefill && row.instance == *instance &&
        row.rank.dp_rank == query.dp_rank) {
      ranks.emplace(std::pair{row.rank.pp_rank, row.rank.tp_rank}, &row);
    }
  }
  if (ranks.empty()) {
    return refuse(FailureCode::kPrefillUnknown, "no rank is registered");
  }
  const core::RegistryRow& first = *ranks.begin()->second;
  for (const auto& [position, row] : ranks) {
    if (row->rank.tp_size != first.rank.tp_size || row->rank.pp_size != first.rank.pp_size ||
        row->engine_epoch != first.engine_epoch) {
      return refuse(FailureCode::kEngineEpochMismatch,
                    fmt::format("the ranks at {} and {} are of two launches of the engine",
                                first.endpoint, row->endpoint));
    }
  }
  // In 64 bits: the sizes are a peer's word.
  const std::uint64_t wanted = std::uint64_t{first.rank.tp_size} * first.rank.pp_size;
  if (ranks.size() < wanted) {
    return refuse(FailureCode::kPrefillUnknown,
                  fmt::format("{} of {} ranks registered, missing {}", ranks.size(), wanted,
                              missing_ranks(ranks, first.rank.pp_size, first.rank.tp_size)));
  }
  std::vector<core::PeerRow> chosen;
  chosen.reserve(ranks.size());
  for (const auto& [position, row] : ranks) {
    chosen.push_back(to_peer_row(*row));
  }
  return chosen;
}

}  // namespace kvferry::runtime
