// The two workers, asked for one thing at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/transfer/child.h"
#include "bench/transfer/engine.h"

namespace kvferry::bench {

// Asked and told by the controller while it runs.
struct Hooks {
  std::function<bool()> interrupted;
  std::function<void(const std::string&)> progress;
};

struct PairResult {
  RunResult target;
  PostResult source;
};

class WorkerPair {
 public:
  explicit WorkerPair(const Hooks& hooks) : hooks_(hooks) {}
  // Ends both.
  ~WorkerPair();

  // Both fill their pools and pin themselves. setup.core is set here.
  Status start(const std::vector<std::string>& engines, WorkerSetup setup, std::int32_t source_core,
               std::int32_t target_core);
  Status prepare(const std::string& block, std::uint32_t pages_per_grant = 0);
  Result<PairResult> run(const std::string& engine, const RunOrder& order);

  // run() in parts, for who does something to a worker in between.
  Status begin(const std::string& engine, const RunOrder& order);
  Result<RunResult> target_result();
  Result<PostResult> source_result();
  pid_t source_pid() const { return source_->child->pid(); }
  pid_t target_pid() const { return target_->child->pid(); }

  // The address blob of the last engine, after prepare().
  const std::string& blob() const { return blob_; }

 private:
  Status ask_both(const Message& message);
  Status both_ready();
  Result<Message> answer(WorkerProcess& worker, Kind kind);

  const Hooks& hooks_;
  std::string blob_;
  std::unique_ptr<WorkerProcess> source_;
  std::unique_ptr<WorkerProcess> target_;
};

}  // namespace kvferry::bench
