// What one seed's world is like: drawn once, at its start ("swarm": each run gets its own mixture,
// so that some runs are nearly quiet and others lose nearly everything).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/protocol.h"
#include "kvferry/options.h"
#include "sim/fault.h"
#include "sim/memory.h"

namespace kvferry::sim {

enum class TransportKind : std::uint8_t {
  kStream,  // as tcp: bytes leave the source's memory when sent; the target copies and can fence
  kShared,  // as shm: the target copies out of the source's memory when it gets to it; it can fence
  kOneSided,  // writes land without the target's help: no local fence, no landings at the target
};

struct Profile {
  std::uint64_t seed = 0;
  // Topology: prefill engines (instances) of one shape, one decode engine.
  std::uint32_t prefill_instances = 1;  // 1 to 3
  EngineShape prefill;                  // 1 to 4 ranks
  EngineShape decode;                   // 1 to 4 ranks
  TransportKind transport = TransportKind::kStream;
  bool curve = true;  // false: no key names an incarnation
  Options options;
  // Workload.
  std::uint32_t rooms = 1;         // 1 to 200
  std::uint32_t room_numbers = 3;  // drawn from a set of this size
  std::uint32_t max_pages = 8;     // per room
  std::uint32_t max_chunks = 4;
  Duration mean_gap{};  // between two requests
  // Links and fabric.
  Duration link_latency{};   // mean
  Duration write_latency{};  // mean, per frame
  std::uint32_t lanes = 2;
  std::uint32_t receive_threads = 2;
  std::uint32_t frame_writes = 8;
  Duration turn_delay{};  // from the first event in the inbox to the turn
  // Faults: what may happen, and how often (per thousand of its occasions; for the nemesis, of its
  // moves).
  FaultSet faults;
  std::array<std::uint16_t, kFaultKinds> rate{};
  Duration nemesis_gap{};  // between two moves

  core::TransportClass transport_class() const;
  std::uint32_t rate_of(Fault fault) const { return rate[static_cast<std::size_t>(fault)]; }
};

// allowed: kinds that --faults leaves; rooms: --rooms.
Profile draw_profile(std::uint64_t seed, const FaultSet& allowed,
                     std::optional<std::uint32_t> rooms);

}  // namespace kvferry::sim
