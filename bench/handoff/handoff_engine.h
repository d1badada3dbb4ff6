// One engine of the bench: its pages, its manager and a scheduler for each turn.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "bench/handoff/room_loop.h"
#include "bench/handoff/room_memory.h"
#include "data_plane/fd.h"
#include "kvferry/kv_manager.h"

namespace kvferry::bench {

struct PollTimes {
  Duration p50{};
  Duration p99{};
  Duration max{};
};

class HandoffEngine {
 public:
  // others: with the null transport decode's pages are prefill's, whose descriptor this is.
  static Result<std::unique_ptr<HandoffEngine>> start(Role role, const HandoffSetup& setup,
                                                      data_plane::Fd others = data_plane::Fd());

  // For the other side's start().
  int memory_fd() const { return memory_.fd(); }
  KvManager& manager() { return *manager_; }
  // A turn; started is called once the first rooms are open. Decode begins after prefill has
  // called it: a grant whose sender is not there yet is another case.
  Result<SideResult> run(const HandoffOrder& order, const std::function<void()>& started);
  // poll_many over so many rooms that wait for their pages, in an order that no cache likes. Decode
  // only.
  Result<PollTimes> measure_polls(std::uint32_t rooms);

 private:
  HandoffEngine(Role role, const HandoffSetup& setup, RoomMemory memory)
      : role_(role), setup_(setup), memory_(std::move(memory)) {}
  void settle(SideResult& result) const;

  const Role role_;
  const HandoffSetup setup_;
  RoomMemory memory_;  // outlives the manager
  std::unique_ptr<KvManager> manager_;
};

}  // namespace kvferry::bench
