// Breaks things: processes, links, the registry, lanes. Moves come at drawn times and of the kinds
// that the profile enables; heal() ends it, and makes what is left permanent.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "base/prng.h"
#include "sim/node.h"

namespace kvferry::sim {

class Nemesis {
 public:
  Nemesis(World& world, Prng prng);
  ~Nemesis();

  void start();
  // Everything that can be mended is mended; a drawn part of what is broken stays so for good:
  // places whose process is dead or paused for ever, pairs that are cut for ever.
  void heal();
  // After heal(): places and pairs that must work.
  bool is_healthy(std::uint32_t place) const;
  // Both places, and the way between them.
  bool is_healthy_pair(std::uint32_t a, std::uint32_t b) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::sim
