#include "sim/nemesis.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "sim/draw.h"
#include "sim/world.h"

namespace kvferry::sim {
namespace {

using Way = std::pair<std::uint32_t, std::uint32_t>;

constexpr std::uint32_t kSwizzledWays = 4;

}  // namespace

struct Nemesis::Impl {
  Impl(World& in, Prng prng)
      : world(in), timing(prng.fork()), choices(prng.fork()), rest(prng.fork()) {}

  using Move = void (Impl::*)(Prng&);
  struct Kind {
    Fault fault;
    Move move;
  };
  static const std::vector<Kind>& kinds();

  void plan_move();
  void move();
  // Runs what unless the world has been healed by then.
  void later(Duration delay, std::function<void()> what);

  std::uint32_t any_place(Prng& prng) const;
  Way any_pair(Prng& prng) const;  // prefill, decode
  Way any_way(Prng& prng) const;
  Duration short_time(Prng& prng) const;  // most often within what a session survives
  // A running process, or null with nothing done.
  Node* any_process(Prng& prng);
  void restart(std::uint32_t place);
  void pause(Node& node);
  void resume(std::uint32_t place);

  void crash(Prng& prng);
  void restart_at_once(Prng& prng);
  void restart_unheard(std::uint32_t place, Prng& prng);
  void pause_some(Prng& prng);
  void stop(Prng& prng);
  void relaunch(Prng& prng);
  void roll(std::uint32_t place);
  void partition(Prng& prng);
  void partition_one_way(Prng& prng);
  void isolate(Prng& prng);
  void clog(Prng& prng);
  void swizzle_clog(Prng& prng);
  void reset(Prng& prng);
  void reset_apart(const Way& way, Prng& prng);
  void half_open(Prng& prng);
  void replay(Prng& prng);
  void registry_down(Prng& prng);
  void lane_reset(Prng& prng);
  void flush_storm(Prng& prng);
  void abort_storm(Prng& prng);

  void block(const std::vector<Way>& ways, Duration time);
  void rest_broken();

  World& world;
  Prng timing;
  Prng choices;
  Prng rest;
  bool over = false;
  std::set<std::uint32_t> rolling;  // a launch has not come to these places yet
  std::set<std::uint32_t> sick;
  std::set<Way> cut;
};

Nemesis::Nemesis(World& world, Prng prng) : impl_(std::make_unique<Impl>(world, prng)) {}
Nemesis::~Nemesis() = default;

void Nemesis::start() { impl_->plan_move(); }

bool Nemesis::is_healthy(std::uint32_t place) const { return !impl_->sick.contains(place); }

bool Nemesis::is_healthy_pair(std::uint32_t a, std::uint32_t b) const {
  return is_healthy(a) && is_healthy(b) && !impl_->cut.contains({std::min(a, b), std::max(a, b)});
}

void Nemesis::heal() {
  World& world = impl_->world;
  impl_->over = true;
  world.registry.set_down(false);
  world.network.heal();
  impl_->rest_broken();
  for (const auto& place : world.places()) {
    if (!is_healthy(place->index)) {
      continue;
    }
    Node* node = world.node_at(place->index);
    const bool is_of_old_launch = impl_->rolling.contains(place->index);
    if (node != nullptr && (node->is_stopped() || is_of_old_launch)) {
      world.kill(*node);
      node = nullptr;
    }
    if (node == nullptr) {
      world.start_process(*place);
    } else if (!node->is_running()) {
      impl_->resume(place->index);
    }
  }
}

// A third of the runs keep something broken for good. Decode seldom: each room needs all of its
// ranks.
void Nemesis::Impl::rest_broken() {
  const bool keeps = percent(rest, 33);
  const std::uint64_t how = rest.below(3);
  const std::uint64_t count = 1 + rest.below(2);
  const bool spare_decode = percent(rest, 75);
  const auto may = [&](Fault fault) {
    return world.profile.faults.test(static_cast<std::size_t>(fault));
  };
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t victim = any_place(rest);
    const Way pair = any_pair(rest);
    if (spare_decode) {
      victim = pair.first;
    }
    if (!keeps) {
      continue;
    }
    Node* node = world.node_at(victim);
    if (how == 0 && may(Fault::kCrash)) {
      sick.insert(victim);
      world.faults.note(Fault::kCrash);
      if (node != nullptr) {
        world.kill(*node);
      }
    } else if (how == 1 && may(Fault::kPause) && node != nullptr) {
      sick.insert(victim);
      world.faults.note(Fault::kPause);
      pause(*node);
    } else if (how == 2 && may(Fault::kPartition)) {
      cut.insert(pair);
      world.faults.note(Fault::kPartition);
      world.network.block(pair.first, pair.second);
      world.network.block(pair.second, pair.first);
    }
  }
}

// --- moves ---

const std::vector<Nemesis::Impl::Kind>& Nemesis::Impl::kinds() {
  static const std::vector<Kind> all{
      {Fault::kCrash, &Impl::crash},
      {Fault::kRestart, &Impl::restart_at_once},
      {Fault::kPause, &Impl::pause_some},
      {Fault::kStop, &Impl::stop},
      {Fault::kRelaunch, &Impl::relaunch},
      {Fault::kPartition, &Impl::partition},
      {Fault::kPartitionOneWay, &Impl::partition_one_way},
      {Fault::kIsolate, &Impl::isolate},
      {Fault::kClog, &Impl::clog},
      {Fault::kSwizzleClog, &Impl::swizzle_clog},
      {Fault::kReset, &Impl::reset},
      {Fault::kHalfOpen, &Impl::half_open},
      {Fault::kReplay, &Impl::replay},
      {Fault::kRegistryDown, &Impl::registry_down},
      {Fault::kLaneReset, &Impl::lane_reset},
      {Fault::kFlushStorm, &Impl::flush_storm},
      {Fault::kAbort, &Impl::abort_storm},
  };
  return all;
}

void Nemesis::Impl::later(Duration delay, std::function<void()> what) {
  world.agenda.after(delay, [this, held = std::move(what)] {
    if (!over) {
      held();
    }
  });
}

void Nemesis::Impl::plan_move() {
  later(exponential(timing, world.profile.nemesis_gap), [this] {
    move();
    plan_move();
  });
}

// Kinds by their rates; one that is switched off keeps its share of moves, in which nothing
// happens.
void Nemesis::Impl::move() {
  Prng own = choices.fork();
  std::uint64_t total = 0;
  for (const Kind& kind : kinds()) {
    total += world.profile.rate_of(kind.fault);
  }
  if (total == 0) {
    return;
  }
  std::uint64_t draw = own.below(total);
  for (const Kind& kind : kinds()) {
    const std::uint32_t rate = world.profile.rate_of(kind.fault);
    if (draw >= rate) {
      draw -= rate;
      continue;
    }
    if (world.faults.may(kind.fault)) {
      (this->*kind.move)(own);
    }
    return;
  }
}

std::uint32_t Nemesis::Impl::any_place(Prng& prng) const {
  return static_cast<std::uint32_t>(prng.below(world.places().size()));
}

Way Nemesis::Impl::any_pair(Prng& prng) const {
  const std::vector<Place*> decode = world.decode_places();
  const std::uint64_t prefill = world.places().size() - decode.size();
  return {static_cast<std::uint32_t>(prng.below(prefill)),
          decode[prng.below(decode.size())]->index};
}

Way Nemesis::Impl::any_way(Prng& prng) const {
  const Way pair = any_pair(prng);
  return percent(prng, 50) ? pair : Way{pair.second, pair.first};
}

Duration Nemesis::Impl::short_time(Prng& prng) const {
  return log_uniform(prng, milliseconds(1),
                     milliseconds(2 * world.profile.options.heartbeat_timeout_ms));
}

// --- processes ---

Node* Nemesis::Impl::any_process(Prng& prng) {
  Node* node = world.node_at(any_place(prng));
  return node != nullptr && node->is_running() ? node : nullptr;
}

void Nemesis::Impl::restart(std::uint32_t place) {
  if (world.node_at(place) == nullptr) {
    world.start_process(world.place(place));
  }
}

void Nemesis::Impl::pause(Node& node) {
  if (node.is_running()) {
    node.pause();
    world.fabric.process_paused(node);
  }
}

void Nemesis::Impl::resume(std::uint32_t place) {
  Node* node = world.node_at(place);
  if (node != nullptr && !node->is_running()) {
    node->resume();
    world.fabric.process_resumed(*node);
  }
}

// Some come back late, some only when all is healed.
void Nemesis::Impl::crash(Prng& prng) {
  const Duration away = short_time(prng);
  const bool comes_back = percent(prng, 85);
  if (Node* node = any_process(prng)) {
    world.faults.note(Fault::kCrash);
    const std::uint32_t place = node->place().index;
    world.kill(*node);
    if (comes_back) {
      later(away, [this, place] { restart(place); });
    }
  }
}

void Nemesis::Impl::restart_at_once(Prng& prng) {
  Node* node = any_process(prng);
  const bool unheard = percent(prng, 50);
  Prng own = prng.fork();
  if (node == nullptr) {
    return;
  }
  world.faults.note(Fault::kRestart);
  const std::uint32_t place = node->place().index;
  if (unheard) {
    restart_unheard(place, own);
    return;
  }
  world.kill(*node);
  restart(place);
}

// Behind a partition. A peer loses its connection like any other, and finds the new process where
// it seeks the old one, with its session of the old one; without CURVE no key tells them apart.
void Nemesis::Impl::restart_unheard(std::uint32_t place, Prng& prng) {
  const Duration grace = milliseconds(world.profile.options.session_grace_ms);
  const bool is_decode = world.place(place).role == Role::kDecode;
  const Way pair = any_pair(prng);
  const std::uint32_t peer = is_decode ? pair.first : pair.second;
  block({{place, peer}, {peer, place}}, uniform(prng, grace / 10, grace));
  world.network.reset(peer, place, false);
  world.kill(*world.node_at(place));
  restart(place);
}

void Nemesis::Impl::pause_some(Prng& prng) {
  const Duration time = short_time(prng);
  if (Node* node = any_process(prng)) {
    world.faults.note(Fault::kPause);
    pause(*node);
    later(time, [this, place = node->place().index, life = node->life()] {
      const Node* same = world.node_at(place);
      if (same != nullptr && same->life() == life) {
        resume(place);
      }
    });
  }
}

void Nemesis::Impl::stop(Prng& prng) {
  const Duration time = short_time(prng);
  Node* node = any_process(prng);
  if (node == nullptr || node->is_stopped()) {
    return;
  }
  world.faults.note(Fault::kStop);
  node->stop(
      Failure{FailureCode::kShuttingDown, FailureWhere::kLocal, "the manager stops", {}, -1});
  later(time, [this, place = node->place().index, life = node->life()] {
    Node* same = world.node_at(place);
    if (same != nullptr && same->life() == life) {
      world.kill(*same);
      restart(place);
    }
  });
}

// All ranks of an engine go, and come back one after the other under the next engine epoch. Or the
// launch rolls through them: ranks of two launches live side by side meanwhile, long enough for
// rooms to open across both.
void Nemesis::Impl::relaunch(Prng& prng) {
  const Place& chosen = world.place(any_place(prng));
  const Role role = chosen.role;
  const std::uint32_t engine = chosen.engine;
  world.faults.note(Fault::kRelaunch);
  world.next_launch(role, engine);
  const bool rolls = percent(prng, 60);
  const Duration gap = world.profile.mean_gap;
  const Duration pace =
      log_uniform(prng, gap / 5, 3 * gap + 20 * world.profile.link_latency + milliseconds(10));
  Duration at{};
  for (const Place* place :
       role == Role::kPrefill ? world.prefill_places(engine) : world.decode_places()) {
    const Duration step = uniform(prng, Duration{}, 2 * pace);
    if (rolls) {
      rolling.insert(place->index);
      later(at, [this, index = place->index] { roll(index); });
      at += step;
      continue;
    }
    if (Node* node = world.node_at(place->index)) {
      world.kill(*node);
    }
    later(short_time(prng) / 4, [this, index = place->index] { restart(index); });
  }
}

void Nemesis::Impl::roll(std::uint32_t place) {
  rolling.erase(place);
  if (Node* node = world.node_at(place)) {
    world.kill(*node);
  }
  restart(place);
}

// --- links ---

void Nemesis::Impl::block(const std::vector<Way>& ways, Duration time) {
  for (const Way& way : ways) {
    world.network.block(way.first, way.second);
  }
  later(time, [this, ways] {
    for (const Way& way : ways) {
      world.network.unblock(way.first, way.second);
    }
  });
}

void Nemesis::Impl::partition(Prng& prng) {
  world.faults.note(Fault::kPartition);
  const Way pair = any_pair(prng);
  block({pair, {pair.second, pair.first}}, short_time(prng));
}

void Nemesis::Impl::partition_one_way(Prng& prng) {
  world.faults.note(Fault::kPartitionOneWay);
  const Way way = any_way(prng);
  block({way}, short_time(prng));
}

void Nemesis::Impl::isolate(Prng& prng) {
  world.faults.note(Fault::kIsolate);
  const std::uint32_t lonely = any_place(prng);
  std::vector<Way> ways;
  for (std::uint32_t other = 0; other < world.places().size(); ++other) {
    if (other != lonely) {
      ways.push_back({lonely, other});
      ways.push_back({other, lonely});
    }
  }
  block(ways, short_time(prng));
}

void Nemesis::Impl::clog(Prng& prng) {
  world.faults.note(Fault::kClog);
  const Way way = any_way(prng);
  world.network.clog(way.first, way.second);
  later(short_time(prng), [this, way] { world.network.unclog(way.first, way.second); });
}

// Each opens at a time of its own, so the order in which they clogged is lost.
void Nemesis::Impl::swizzle_clog(Prng& prng) {
  world.faults.note(Fault::kSwizzleClog);
  const Duration longest = short_time(prng);
  for (std::uint32_t i = 0; i < kSwizzledWays; ++i) {
    const Way way = any_way(prng);
    const Duration begin = uniform(prng, Duration{}, longest / 2);
    const Duration end = uniform(prng, longest / 2, longest);
    later(begin, [this, way] { world.network.clog(way.first, way.second); });
    later(end + Duration(1), [this, way] { world.network.unclog(way.first, way.second); });
  }
}

void Nemesis::Impl::reset(Prng& prng) {
  world.faults.note(Fault::kReset);
  const Way way = any_way(prng);
  const bool both_ways = percent(prng, 60);
  const bool apart = percent(prng, 50);
  Prng own = prng.fork();
  if (apart) {
    reset_apart(way, own);
  } else {
    world.network.reset(way.first, way.second, both_ways);
  }
}

// Each side loses its connection at a time of its own, and neither gets another for a while: when
// they meet again, one may have ended the session that the other still holds.
void Nemesis::Impl::reset_apart(const Way& way, Prng& prng) {
  const Duration grace = milliseconds(world.profile.options.session_grace_ms);
  const Duration second = uniform(prng, Duration{}, grace);
  const Way back{way.second, way.first};
  // Most often between the two ends of grace.
  const bool between = percent(prng, 70);
  const Duration open = uniform(prng, grace * 6 / 10, grace * 18 / 10);
  const Duration well_timed = uniform(prng, grace * 9 / 10, grace + second * 8 / 10);
  block({way, back}, between ? well_timed : open);
  world.network.reset(way.first, way.second, false);
  later(second, [this, back] { world.network.reset(back.first, back.second, false); });
}

void Nemesis::Impl::half_open(Prng& prng) {
  world.faults.note(Fault::kHalfOpen);
  const Way way = any_way(prng);
  world.network.half_open(way.first, way.second);
}

void Nemesis::Impl::replay(Prng&) {
  world.faults.note(Fault::kReplay);
  world.network.replay_some();
}

// --- the rest ---

void Nemesis::Impl::registry_down(Prng& prng) {
  world.faults.note(Fault::kRegistryDown);
  world.registry.set_down(true);
  later(short_time(prng), [this] { world.registry.set_down(false); });
}

void Nemesis::Impl::lane_reset(Prng& prng) {
  world.faults.note(Fault::kLaneReset);
  world.fabric.reset_some_lane(prng);
}

void Nemesis::Impl::flush_storm(Prng& prng) {
  world.faults.note(Fault::kFlushStorm);
  world.fabric.flush_some_session(prng);
}

void Nemesis::Impl::abort_storm(Prng& prng) { world.workload.abort_some(prng); }

}  // namespace kvferry::sim
