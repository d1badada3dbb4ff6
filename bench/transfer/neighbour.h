// A second target beside the one that is measured: a process of its own in a session of the same
// source transport, stopped by SIGSTOP once it has granted its pages. What is posted to it has no
// end but its deadline.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/transfer/child.h"
#include "bench/transfer/engine.h"
#include "data_plane/transport.h"

namespace kvferry::bench {

class Neighbour {
 public:
  // Runs in the source's process, whose transport is open and outlives this. Its name, set-up and
  // pool are those of the measured pair.
  static Result<std::unique_ptr<Neighbour>> start(const std::string& name, const WorkerSetup& setup,
                                                  const Pool& pool,
                                                  data_plane::Transport& transport);
  ~Neighbour();  // as end()
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  SessionEpoch epoch() const { return epoch_; }
  void post(std::uint32_t count = 1);  // writes, one in each post()
  std::uint64_t posted() const { return posted_; }
  Duration post_max() const { return post_max_; }
  // Kills the process and closes the session, which ends what was posted.
  void end();

 private:
  Neighbour(data_plane::Transport& transport, WorkerProcess worker)
      : transport_(transport), worker_(std::move(worker)) {}

  Status prepare(const std::string& name, WorkerSetup setup, const Pool& pool, Channel& peer);
  Status open(const Block& block, Channel& peer);
  Status take_grants(const Block& block, Channel& peer);
  Status stop_process();

  data_plane::Transport& transport_;
  WorkerProcess worker_;
  SessionEpoch epoch_;
  bool is_open_ = false;
  std::vector<layout::Write> writes_;  // one for each page that it granted
  std::uint64_t posted_ = 0;
  Duration post_max_{};
};

}  // namespace kvferry::bench
