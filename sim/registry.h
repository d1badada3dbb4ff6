// The bootstrap registry as decode sees it: answers each query exactly once, in time or as a
// failure (core/action.h), and as wrongly as the seed asks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/prng.h"
#include "core/action.h"
#include "sim/node.h"

namespace kvferry::sim {

class Registry {
 public:
  Registry(World& world, Prng prng) : world_(world), prng_(prng) {}

  void ask(Node& decode, const core::ResolvePrefill& query);
  // A process has come up at its place; its row replaces its predecessor's.
  void registered(const Node& node);
  void set_down(bool down) { down_ = down; }
  void heal() { down_ = false; }

 private:
  std::vector<core::PeerRow> rows_of(const std::string& instance);

  World& world_;
  Prng prng_;
  bool down_ = false;
  std::vector<core::PeerRow> rows_;
  std::vector<core::PeerRow> former_;  // rows of earlier lives
};

}  // namespace kvferry::sim
