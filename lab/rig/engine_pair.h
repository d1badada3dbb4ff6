// Engines of several ranks, and rooms that span all ranks of two of them: P0, P1 and D0 to D3 are
// one room's participants when a prefill engine of two ranks and a decode engine of four share it.
//
// All engines run one model of kModelLayers and kModelHeads. tp shares out its heads, pp its
// layers. A prefill engine of tp 2 has each of its ranks write to two ranks of a decode engine of
// tp 4; one of pp 2 has both of its ranks write to all four.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/rig/cluster.h"

namespace kvferry::lab {

inline constexpr std::uint32_t kModelLayers = 2;
inline constexpr std::uint32_t kModelHeads = 4;

struct EnginePlan {
  std::string name;  // its instance; ranks are name0, name1, ...
  Role role = Role::kPrefill;
  std::uint32_t tp_size = 1;
  std::uint32_t pp_size = 1;
  std::vector<std::string> options;  // of each rank
  std::string missing;               // guard that its ranks run without
};

// The ranks of one launch. Ranks belong to the cluster.
struct LabEngine {
  EnginePlan plan;
  std::vector<LabRank*> ranks;
};
Result<LabEngine> start_engine(Cluster& cluster, const EnginePlan& plan);

struct EnginePair {
  LabEngine& prefill;
  LabEngine& decode;

  // Decode's first.
  std::vector<LabRank*> ranks() const;
  // Those that a rank of decode takes pages from.
  std::uint32_t writers_of_each() const;
  // Those that a rank of prefill writes to, each of which grants to it.
  std::uint32_t grants_of_each() const;
};

// Until each rank of decode has a session with each of prefill in their present lives.
Status await_pairs(Cluster& cluster, const EnginePair& pair, milliseconds patience);
// Opens the room at every rank, decode's first.
Status open_everywhere(Cluster& cluster, const EnginePair& pair, const RoomPlan& room);

// The bytes of each data connection between the two go through a relay of its own from here on.
struct DataRelay {
  LabRank* prefill = nullptr;
  LabRank* decode = nullptr;
  support::Relay* wire = nullptr;
};
Result<std::vector<DataRelay>> relay_all_data(Cluster& cluster, const EnginePair& pair);

}  // namespace kvferry::lab
