// Prefill role: computes prompts chunk by chunk, first come first served, and sends each page as
// soon as it is complete. A prompt's transfer goes on while later prompts are computed; only free
// pages limit how many are under way.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "serve/page_pool.h"
#include "serve/room_log.h"
#include "serve/scheduler.h"
#include "serve/transfer.h"

namespace kvferry::serve {

class PrefillScheduler final : public Scheduler {
 public:
  PrefillScheduler(Engine& engine, PagePool& pool, Transfer& transfer, RoomLog& rooms,
                   ServeMetrics& metrics, SchedulerLimits limits);
  ~PrefillScheduler() override;

 protected:
  void accept(Submission submission) override;
  bool turn(Instant now) override;
  void fail_all(const Failure& cause) override;
  int event_fd() const override { return transfer_.event_fd(); }

 private:
  struct Job;
  // What a room has and will give back, also after its job is over.
  struct Held {
    std::size_t pages = 0;
    std::int64_t aux_slot = -1;
  };

  void take_back();
  // Acts on what the room says; false when the job is over.
  bool follow_room(Job& job, KvPoll status, Instant now);
  // One chunk of the oldest prompt that is not computed yet. False when there is none, or no pages.
  bool compute(Instant now);
  bool reserve(Job& job, Instant now);
  Status compute_chunk(Job& job);
  Status export_pages(Job& job);
  Status end_of_prompt(Job& job);
  Status send_ready(Job& job);
  void end(Job& job, const Failure* failure);
  // In the shape of the request's route; the router waits for it and passes nothing of it on.
  net::HttpResponse success_answer(const Job& job) const;
  void close_sequence(Job& job);

  Engine& engine_;
  PagePool& pool_;
  Transfer& transfer_;
  RoomLog& rooms_;
  std::deque<std::unique_ptr<Job>> jobs_;
  std::unordered_map<std::uint64_t, Held> held_;
};

}  // namespace kvferry::serve
