#include "lab/rig/engine_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace kvferry::lab {
namespace {

// Of the ranks on the other side, how many hold a part of what one of these holds.
std::uint32_t met_by_each(std::uint32_t here, std::uint32_t there) {
  return std::max(there / here, 1U);
}

std::uint32_t met_by_each(const EnginePlan& here, const EnginePlan& there) {
  return met_by_each(here.tp_size, there.tp_size) * met_by_each(here.pp_size, there.pp_size);
}

}  // namespace

Result<LabEngine> start_engine(Cluster& cluster, const EnginePlan& plan) {
  LabEngine engine{plan, {}};
  const std::uint32_t launch = std::random_device{}() | 1U;
  for (std::uint32_t pp = 0; pp < plan.pp_size; ++pp) {
    for (std::uint32_t tp = 0; tp < plan.tp_size; ++tp) {
      RankPlan rank{fmt::format("{}{}", plan.name, engine.ranks.size()), plan.role, plan.options,
                    plan.missing, plan.name};
      for (const auto& [option, value] :
           {std::pair{"engine-epoch", launch}, std::pair{"tp-rank", tp},
            std::pair{"tp-size", plan.tp_size}, std::pair{"pp-rank", pp},
            std::pair{"pp-size", plan.pp_size}, std::pair{"layers", kModelLayers},
            std::pair{"heads", kModelHeads}}) {
        rank.options.push_back(fmt::format("--{}={}", option, value));
      }
      auto started = cluster.start(rank);
      if (!started) return tl::unexpected(started.error());
      engine.ranks.push_back(*started);
    }
  }
  return engine;
}

std::vector<LabRank*> EnginePair::ranks() const {
  std::vector<LabRank*> all = decode.ranks;
  all.insert(all.end(), prefill.ranks.begin(), prefill.ranks.end());
  return all;
}

std::uint32_t EnginePair::writers_of_each() const { return met_by_each(decode.plan, prefill.plan); }

std::uint32_t EnginePair::grants_of_each() const { return met_by_each(prefill.plan, decode.plan); }

Status await_pairs(Cluster& cluster, const EnginePair& pair, milliseconds patience) {
  for (LabRank* decode : pair.decode.ranks) {
    for (LabRank* prefill : pair.prefill.ranks) {
      if (Status paired = cluster.await_pair(*decode, *prefill, patience); !paired) return paired;
    }
  }
  return {};
}

Status open_everywhere(Cluster& cluster, const EnginePair& pair, const RoomPlan& room) {
  RoomPlan spanning = room;
  spanning.grants = pair.grants_of_each();
  for (LabRank* rank : pair.decode.ranks) {
    if (Status opened = cluster.open_decode(*rank, pair.prefill.plan.name, spanning); !opened) {
      return opened;
    }
  }
  for (LabRank* rank : pair.prefill.ranks) {
    if (Status opened = cluster.open_prefill(*rank, spanning); !opened) return opened;
  }
  return {};
}

Result<std::vector<DataRelay>> relay_all_data(Cluster& cluster, const EnginePair& pair) {
  std::vector<DataRelay> relays;
  for (LabRank* prefill : pair.prefill.ranks) {
    for (LabRank* decode : pair.decode.ranks) {
      auto wire = cluster.relay_data(*prefill, *decode);
      if (!wire) return tl::unexpected(wire.error());
      relays.push_back({prefill, decode, *wire});
    }
  }
  return relays;
}

}  // namespace kvferry::lab
