// A thread that posts StaleWrites until it is destroyed, and then waits for the end of each.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "rig.h"
#include "stale_writes.h"

namespace kvferry::data_plane {

class EndlessWriter {
 public:
  EndlessWriter(Rig& rig, std::uint64_t session)
      : rig_(rig), session_(session), writes_(rig.shape(), 3), thread_([this] { run(); }) {}
  ~EndlessWriter() {
    stopping_ = true;
    thread_.join();
  }
  EndlessWriter(const EndlessWriter&) = delete;
  EndlessWriter& operator=(const EndlessWriter&) = delete;

  void set_generation(std::uint32_t slot, std::uint64_t generation) {
    writes_.set_generation(slot, generation);
  }

 private:
  void run() {
    std::size_t posted = 0;
    while (!stopping_) {
      const auto writes = writes_.next(32);
      rig_.post(session_, writes);
      posted += writes.size();
      rig_.source_sink().wait([&](const auto& state) { return state.completed() + 256 >= posted; });
    }
    rig_.source_sink().wait([&](const auto& state) { return state.completed() == posted; });
  }

  Rig& rig_;
  const std::uint64_t session_;
  StaleWrites writes_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace kvferry::data_plane
