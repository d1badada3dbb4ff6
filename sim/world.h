// Everything of one run. Built from a profile; parts reach each other through it. No part keeps a
// pointer to a Node across happenings without asking node_at() again: processes die.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/guards.h"
#include "sim/agenda.h"
#include "sim/chronicle.h"
#include "sim/fabric.h"
#include "sim/fault.h"
#include "sim/model_guard.h"
#include "sim/nemesis.h"
#include "sim/network.h"
#include "sim/node.h"
#include "sim/oracle.h"
#include "sim/profile.h"
#include "sim/registry.h"
#include "sim/trace.h"
#include "sim/transition_cells.h"
#include "sim/workload.h"

namespace kvferry::sim {

struct Missing {  // guards that a mutant lacks; in a product build core's is always there
  core::Guard core = core::Guard::kNone;
  ModelGuard model = ModelGuard::kNone;
};

class World {
 public:
  World(const Profile& profile, const Missing& missing, LogLevel log);
  ~World();

  // --- processes ---
  std::vector<std::unique_ptr<Place>>& places() { return places_; }
  Place& place(std::uint32_t index) { return *places_.at(index); }
  Place* place_at(const std::string& endpoint);
  Node* node_at(std::uint32_t place);  // alive (perhaps paused), else nullptr
  std::vector<Place*> prefill_places(std::uint32_t instance);
  std::vector<Place*> decode_places();
  Node& start_process(Place& place);  // the place is empty
  void kill(Node& node);
  // Every rank of an engine dies and comes back with a new engine epoch.
  EngineEpoch next_launch(Role role, std::uint32_t engine);

  const Profile profile;
  const Missing missing;
  Faults faults;
  Agenda agenda;
  Trace trace;
  CellCounts cells;
  Prng seeds;  // forked once per concern, in the order of the members below
  Oracle oracle;
  Chronicle chronicle;
  Network network;
  Fabric fabric;
  Registry registry;
  Workload workload;
  Nemesis nemesis;

 private:
  struct Engine {
    EngineEpoch epoch;
    std::uint32_t launches = 0;
  };
  Engine& engine_of(Role role, std::uint32_t engine);

  std::vector<std::unique_ptr<Place>> places_;
  std::vector<std::unique_ptr<Node>> nodes_;  // by place; null when dead
  std::vector<std::unique_ptr<Node>> dead_;   // kept: cells of dead lives are history
  std::vector<Engine> prefill_engines_;
  Engine decode_engine_;
};

}  // namespace kvferry::sim
