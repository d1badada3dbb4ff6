// Decode role: grants pages, waits for the prompt's KV, imports it page by page, and answers all
// running sequences in one batch. A request holds pages only from its grant to its import.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "serve/page_pool.h"
#include "serve/room_log.h"
#include "serve/running_batch.h"
#include "serve/scheduler.h"
#include "serve/transfer.h"

namespace kvferry::serve {

class DecodeScheduler final : public Scheduler {
 public:
  DecodeScheduler(Engine& engine, PagePool& pool, Transfer& transfer, RoomLog& rooms,
                  ServeMetrics& metrics, SchedulerLimits limits);
  ~DecodeScheduler() override;

 protected:
  void accept(Submission submission) override;
  bool turn(Instant now) override;
  void fail_all(const Failure& cause) override;
  int event_fd() const override { return transfer_.event_fd(); }

 private:
  struct Job;

  void take_back();
  // Grants pages to the oldest requests while there are any.
  void admit(Instant now);
  Status grant(Job& job, std::vector<PageIndex> pages, std::uint32_t aux_slot, Instant now);
  void follow_rooms(Instant now);
  // The prompt's KV is here. False when the job is over.
  bool begin_import(Job& job, Instant now);
  // A few pages of the oldest import. True when there is more to import.
  bool import_some();
  Status import_page(Job& job);
  void give_back(Job& job);
  void end(Job& job, const Failure& failure);
  // A job without a room: prefill has one, and is told.
  void end_waiting(Job& job, const Failure& failure);

  Engine& engine_;
  PagePool& pool_;
  Transfer& transfer_;
  RoomLog& rooms_;
  RunningBatch running_;
  std::deque<std::unique_ptr<Job>> waiting_;    // no pages yet
  std::vector<std::unique_ptr<Job>> granted_;   // the transfer is under way
  std::deque<std::unique_ptr<Job>> importing_;  // the KV is here
};

}  // namespace kvferry::serve
