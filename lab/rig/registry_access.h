// The drill's own way to a registry of its cluster, which has no token: who is registered there,
// and a row of its own.
#pragma once

#include <string>
#include <vector>

#include "core/bootstrap_registry.h"

namespace kvferry::lab {

// Both wait for the answer, for a second at most.
Result<std::vector<core::RegistryRow>> list_ranks(const std::string& registry);
// Registered for a minute.
Status register_rank(const std::string& registry, const core::RegistryRow& row);

}  // namespace kvferry::lab
