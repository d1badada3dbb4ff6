// Sequences that are being answered: one token of each per step, all in one batch.
//
// Threads: the scheduler's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "serve/answer.h"
#include "serve/engine.h"
#include "serve/room_log.h"

namespace kvferry::serve {

struct Running {
  std::unique_ptr<Answer> answer;
  SequenceId sequence;
  std::uint32_t position = 0;  // of next within the sequence
  Token next = 0;              // already in the answer, not yet evaluated
  std::optional<RoomStats> stats;
};

class RunningBatch {
 public:
  RunningBatch(Engine& engine, ServeMetrics& metrics, RoomLog& rooms)
      : engine_(engine), metrics_(metrics), rooms_(rooms) {}

  void add(Running running) { running_.push_back(std::move(running)); }
  bool empty() const { return running_.empty(); }
  std::size_t size() const { return running_.size(); }

  // Returns how many answers ended. An engine's failure ends all of them.
  std::size_t step();
  std::size_t fail_all(const Failure& cause);

 private:
  std::size_t remove_complete();

  Engine& engine_;
  ServeMetrics& metrics_;
  RoomLog& rooms_;
  std::vector<Running> running_;
};

}  // namespace kvferry::serve
