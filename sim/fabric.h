// The data plane as a model: sources with queues and lanes, frames under way, and targets with
// receiving threads. Three kinds of transport (profile.h). Every step in which another thread could
// get between is a happening of its own: mark, check, claim, each part of a copy, clearing the
// mark, the word of it.
//
// Keeps the contract D1 to D5 of data_plane/transport.h, as badly as the contract allows: one
// outcome per ticket, unknown followed by quiet, a fence that lets through what was under way until
// it is done, completions that come late. A posted write outlives its process; what is under way
// may land, be torn or vanish.
//
// Receiver-executed kinds (kStream, kShared). A frame carries writes of one grant. A receiving
// thread takes it: mark up, generation read, ranges claimed, bytes copied part by part, mark
// cleared, landings reported to the target's mailbox, answers sent to the source. A frame whose
// next bytes are not here yet keeps its claims and has no mark up meanwhile; each part repeats mark
// and check. A range that another ticket has claimed is refused; a second copy of a ticket is
// answered with the first one's outcome. A fence changes the generation, then waits until each mark
// that it found up was once clear or changed.
//
// kOneSided: bytes land when they arrive, nothing is checked at the target but the registration of
// its process life; the target learns nothing. When the target has closed a session and nothing of
// it is under way any more (its source can launch no more), its core is told SessionTornDown.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/prng.h"
#include "core/action.h"
#include "sim/model_guard.h"
#include "sim/oracle.h"

namespace kvferry::sim {

class Fabric {
 public:
  Fabric(World& world, Prng prng, ModelGuard missing);
  ~Fabric();

  // --- orders of the protocols ---
  Status open_session(Node& node, const core::OpenDataSession& open);
  void close_session(Node& node, SessionEpoch epoch);
  void open_grant(Node& target, const core::OpenGrant& open);
  void fence(Node& target, GrantId grant);
  void post(Node& source, const core::PostWrites& post);
  void give_up(Node& source, const core::GiveUpWrites& order);

  // --- processes ---
  // Its threads are gone: no fence of it completes, nothing is received. What it had sent stays
  // under way; what it had only queued is gone.
  void process_died(Node& node);
  // Its threads stand still, a mark may stay up meanwhile.
  void process_paused(Node& node);
  void process_resumed(Node& node);

  // --- the nemesis ---
  void reset_some_lane(Prng& prng);
  void flush_some_session(Prng& prng);  // everything queued comes back refused at once
  // No new faults; what is held, stalled or unknown goes on now, except (leave_stalled) frames
  // whose writer stopped for good.
  void heal(bool leave_stalled);

  // --- for tests ---
  // Called with every event just before it goes into its process's mailbox.
  void watch(std::function<void(const Node&, const core::Event&)> watch);

  // --- for the oracle ---
  // Whether something under way may still read source bytes under this name.
  bool reads_source(const WriteName& name) const;
  std::uint64_t writes_under_way() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvferry::sim
