// The two engines of the bench and their registry, asked for one thing at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/handoff/handoff_engine.h"
#include "bench/transfer/child.h"
#include "bench/transfer/worker_pair.h"
#include "kvferry/bootstrap_server.h"

namespace kvferry::bench {

struct PairTurn {
  SideResult prefill;
  SideResult decode;
};

// setup.registry is filled in here.
class HandoffPair {
 public:
  explicit HandoffPair(const Hooks& hooks) : hooks_(hooks) {}
  // Ends both.
  ~HandoffPair();

  Status start(HandoffSetup setup);
  // order.first_room is chosen here. Both sides' turns, whatever became of their rooms.
  Result<PairTurn> run(HandoffOrder order);
  // poll_many over so many rooms of the decode side.
  Result<PollTimes> poll(std::uint32_t rooms);

 private:
  Result<Message> answer(WorkerProcess& worker, std::chrono::milliseconds patience);

  const Hooks& hooks_;
  std::unique_ptr<BootstrapServer> registry_;
  std::unique_ptr<WorkerProcess> prefill_;
  std::unique_ptr<WorkerProcess> decode_;
  std::uint64_t next_room_ = 1;
};

}  // namespace kvferry::bench
