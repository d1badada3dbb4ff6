// A run in which the target takes pages back while the source writes them at full speed: one grant
// in eight is fenced just before its turn in the stream, so that its writes are stale, or being
// copied, when the fence comes. The source does not know.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/prng.h"
#include "bench/transfer/released_pages.h"

namespace kvferry::bench {

class FencedRun {
 public:
  // The first grants are open already.
  FencedRun(TransportTarget& target, const RunOrder& order);
  Result<RunResult> run(Channel& source);

 private:
  static constexpr std::uint32_t kEvery = 8;

  void opened(std::uint32_t slot);
  void on_full(std::uint32_t slot);
  void on_fenced(const TargetSink::Fenced& fenced, std::uint32_t slot);
  RunResult result(const Measurement& measurement);

  TransportTarget& target_;
  const RunOrder order_;
  Prng prng_;
  std::unordered_map<std::uint32_t, std::uint32_t> early_;  // slot to fence, by the salt before it
  std::vector<Duration> latencies_;
  ReleasedPages released_;
  std::uint64_t sampled_pages_ = 0;
};

}  // namespace kvferry::bench
