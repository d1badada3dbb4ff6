// JSON of the registry and of dump_status(). The one unit behind this header knows the JSON
// library.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bootstrap_registry.h"
#include "core/protocol.h"
#include "kvferry/status.h"

namespace kvferry::runtime {

// Body of PUT and DELETE: {"row": {...}, "lease_ms": N}.
struct Registration {
  core::RegistryRow row;
  std::uint32_t lease_ms = 0;
};
std::string encode_registration(const Registration& registration);
// Fails with kMalformed; the text names the field. Texts are checked for length and control
// characters.
Result<Registration> decode_registration(std::string_view text);

// Answer of GET: {"rows": [...]}. A row that does not parse is left out and counted in skipped.
std::string encode_rows(std::span<const core::RegistryRow> rows);
Result<std::vector<core::RegistryRow>> decode_rows(std::string_view text, std::size_t& skipped);

// {"error": {"message": ..., "code": ...}}.
std::string encode_error(const Failure& failure);
// The message in such an answer, empty when there is none.
std::string decode_error(std::string_view text);

struct StatusReport {
  std::string_view role;
  std::string_view instance;
  std::string_view endpoint;
  Incarnation incarnation;
  std::int64_t age_ms = 0;  // of the snapshot
  const core::Snapshot* snapshot = nullptr;
  std::uint64_t rooms_live = 0;
  std::uint64_t open_handles = 0;
  std::vector<std::string> readiness_problems;
};
std::string encode_status(const StatusReport& report);

}  // namespace kvferry::runtime
