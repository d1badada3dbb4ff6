// Which rows of a registry answer a room's question for its prefill ranks. Pure.
#pragma once

#include <span>
#include <vector>

#include "core/action.h"
#include "core/bootstrap_registry.h"
#include "kvferry/status.h"

namespace kvferry::runtime {

core::PeerRow to_peer_row(const core::RegistryRow& row);

// All tp x pp ranks of the replica, in order of pp and tp rank. Fails with kPrefillUnknown when the
// instance is not there or ambiguous (the text lists what is there) or when ranks are missing (the
// text names them), and with kEngineEpochMismatch when the ranks are of two launches.
Result<std::vector<core::PeerRow>> choose_prefill(std::span<const core::RegistryRow> rows,
                                                  const core::ResolvePrefill& query);

}  // namespace kvferry::runtime
