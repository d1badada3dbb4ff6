// What joins the memory transports of one process, and the faults that a test can make it have.
// Shared by its transports; made by the test, not by the factory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/prng.h"
#include "data_plane/receive_gate.h"

namespace kvferry::data_plane {

class MemoryFabric {
 public:
  // Posted writes stay queued at their source.
  void hold_writes(bool hold) {
    change([&] { hold_writes_ = hold; });
  }
  // A copy stops after its first half, as a writer does that is stopped in mid-frame.
  void stall_copies(bool stall) {
    change([&] { stall_copies_ = stall; });
  }
  // Stalled copies lose their lane: they end as torn.
  void break_stalled() {
    change([&] { ++breaks_; });
  }
  // Each write is carried twice, by any two threads, at any time.
  void duplicate_writes(bool duplicate) {
    change([&] { duplicate_writes_ = duplicate; });
  }
  // Writes are carried in random order.
  void reorder_writes(std::uint64_t seed) {
    change([&] {
      reorder_writes_ = true;
      prng_ = Prng(seed);
    });
  }
  // Each of the next count copies has one bit of its first byte flipped on its way.
  void alter_copies(std::uint32_t count) {
    change([&] { altered_copies_ = count; });
  }
  // The next count answers never reach the source.
  void drop_answers(std::uint32_t count) {
    change([&] { dropped_answers_ = count; });
  }

  std::uint64_t stalled_copies() {
    std::lock_guard lock(mutex_);
    return stalled_;
  }
  // Second copies that got another answer than the first.
  std::uint64_t differing_answers() {
    std::lock_guard lock(mutex_);
    return differing_answers_;
  }

 private:
  friend class MemoryTransport;

  struct Endpoint {
    std::shared_ptr<ReceiveGate> gate;
    std::uint32_t users = 0;  // threads that carry a write there now
    bool closing = false;
  };

  template <typename Change>
  void change(Change&& apply) {
    std::lock_guard lock(mutex_);
    apply();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_endpoint_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Endpoint>> endpoints_;
  bool hold_writes_ = false;
  bool stall_copies_ = false;
  bool duplicate_writes_ = false;
  bool reorder_writes_ = false;
  std::uint64_t breaks_ = 0;
  std::uint32_t dropped_answers_ = 0;
  std::uint32_t altered_copies_ = 0;
  Prng prng_{1};
  std::uint64_t stalled_ = 0;
  std::uint64_t differing_answers_ = 0;
};

}  // namespace kvferry::data_plane
