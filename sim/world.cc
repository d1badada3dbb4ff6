#include "sim/world.h"

#include <fmt/format.h>

#include <utility>

namespace kvferry::sim {

World::World(const Profile& drawn, const Missing& lacking, LogLevel log)
    : profile(drawn),
      missing(lacking),
      faults(drawn.faults),
      trace(log),
      seeds(drawn.seed ^ 0x6B76666572727921ULL),
      oracle(*this),
      chronicle(*this),
      network(*this, seeds.fork()),
      fabric(*this, seeds.fork(), lacking.model),
      registry(*this, seeds.fork()),
      workload(*this, seeds.fork()),
      nemesis(*this, seeds.fork()),
      prefill_engines_(drawn.prefill_instances) {
  const auto add_engine = [this](Role role, std::uint32_t engine, const EngineShape& shape) {
    const bool prefill = role == Role::kPrefill;
    for (std::uint32_t pp = 0; pp < shape.pp_size; ++pp) {
      for (std::uint32_t tp = 0; tp < shape.tp_size; ++tp) {
        auto place = std::make_unique<Place>();
        place->index = static_cast<std::uint32_t>(places_.size());
        place->role = role;
        place->engine = engine;
        const std::uint32_t rank = pp * shape.tp_size + tp;
        place->name = prefill ? fmt::format("p{}.{}", engine, rank) : fmt::format("d{}", rank);
        place->endpoint = place->name + ":1";
        place->instance = prefill ? fmt::format("prefill{}", engine) : "decode";
        place->memory = std::make_unique<EngineMemory>(make_shape(shape, tp, pp));
        places_.push_back(std::move(place));
      }
    }
    next_launch(role, engine);
  };
  for (std::uint32_t engine = 0; engine < profile.prefill_instances; ++engine) {
    add_engine(Role::kPrefill, engine, profile.prefill);
  }
  add_engine(Role::kDecode, 0, profile.decode);
  nodes_.resize(places_.size());
  for (const auto& place : places_) {
    start_process(*place);
  }
}

World::~World() = default;

Place* World::place_at(const std::string& endpoint) {
  for (const auto& place : places_) {
    if (place->endpoint == endpoint) {
      return place.get();
    }
  }
  return nullptr;
}

Node* World::node_at(std::uint32_t place) { return nodes_.at(place).get(); }

std::vector<Place*> World::prefill_places(std::uint32_t instance) {
  std::vector<Place*> found;
  for (const auto& place : places_) {
    if (place->role == Role::kPrefill && place->engine == instance) {
      found.push_back(place.get());
    }
  }
  return found;
}

std::vector<Place*> World::decode_places() {
  std::vector<Place*> found;
  for (const auto& place : places_) {
    if (place->role == Role::kDecode) {
      found.push_back(place.get());
    }
  }
  return found;
}

World::Engine& World::engine_of(Role role, std::uint32_t engine) {
  return role == Role::kPrefill ? prefill_engines_.at(engine) : decode_engine_;
}

EngineEpoch World::next_launch(Role role, std::uint32_t number) {
  Engine& engine = engine_of(role, number);
  ++engine.launches;
  engine.epoch =
      EngineEpoch((role == Role::kPrefill ? 1'000U * (1 + number) : 100'000U) + engine.launches);
  return engine.epoch;
}

Node& World::start_process(Place& place) {
  ++place.life;
  auto& at = nodes_.at(place.index);
  at = std::make_unique<Node>(*this, place, engine_of(place.role, place.engine).epoch);
  trace.line(LogLevel::kBrief, agenda.now(), "{} starts", at->name());
  oracle.process_started(*at);
  workload.process_started(*at);
  registry.registered(*at);
  return *at;
}

void World::kill(Node& node) {
  trace.line(LogLevel::kBrief, agenda.now(), "{} dies", node.name());
  node.die();
  network.process_died(node);
  fabric.process_died(node);
  workload.process_died(node);
  oracle.process_died(node);
  chronicle.process_died(node);
  auto& at = nodes_.at(node.place().index);
  dead_.push_back(std::move(at));
}

}  // namespace kvferry::sim
