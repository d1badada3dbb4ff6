// Both roles in one process, without a transfer: the reference that split serving is compared with.
// Chunks, sampling and stepping are the same as there.
#pragma once

#include <deque>
#include <memory>

#include "serve/running_batch.h"
#include "serve/scheduler.h"

namespace kvferry::serve {

class LocalScheduler final : public Scheduler {
 public:
  LocalScheduler(Engine& engine, RoomLog& rooms, ServeMetrics& metrics, SchedulerLimits limits);
  ~LocalScheduler() override;

 protected:
  void accept(Submission submission) override;
  bool turn(Instant now) override;
  void fail_all(const Failure& cause) override;

 private:
  struct Job {
    std::unique_ptr<Answer> answer;
    std::optional<SequenceId> sequence;
    std::uint32_t position = 0;
  };

  // One chunk of the oldest prompt. False when there is none, or no sequence is free.
  bool compute(Instant now);
  Status compute_chunk(Job& job);
  void end(Job& job, const Failure& failure);

  Engine& engine_;
  RunningBatch running_;
  std::deque<Job> jobs_;
};

}  // namespace kvferry::serve
