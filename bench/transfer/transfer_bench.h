// The controller of `kvferry bench transfer`: two workers and the peers' commands, and for each
// block rounds in which every engine has one turn, so that a figure and its reference saw the same
// machine.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/transfer/engine.h"
#include "bench/transfer/results.h"
#include "bench/transfer/worker_pair.h"
#include "kvferry/status.h"

namespace kvferry::bench {

struct TransferOptions {
  std::vector<std::string> engines;  // transports and references
  std::vector<std::string> blocks;
  std::vector<std::pair<std::string, std::string>> peers;  // name and command
  std::uint32_t rounds = 7;
  double seconds = 0.4;             // measured in each turn
  std::uint32_t batch = 0;          // writes in one post(), 0: all of a grant
  std::uint64_t releases = 20'000;  // that the fence case watches
  std::int32_t source_core = 0;
  std::int32_t target_core = 1;
  WorkerSetup setup;  // core and engines are filled in by the bench
};

struct PeerNote {
  std::string name;
  std::string version;
  std::string settings;
};

struct TransferOutcome {
  std::vector<Series> series;  // block by block, in the engines' order, peers last
  std::vector<PeerNote> peers;
  std::uint64_t checked_pages = 0;
  std::string failure;  // what ended the bench early
};

TransferOutcome run_transfer_bench(const TransferOptions& options, const Hooks& hooks);

}  // namespace kvferry::bench
