#include "bench/transfer/transfer_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/transfer/child.h"
#include "bench/transfer/worker_pair.h"

namespace kvferry::bench {
namespace {

class TransferBench {
 public:
  TransferBench(const TransferOptions& options, const Hooks& hooks, TransferOutcome& outcome)
      : options_(options), hooks_(hooks), outcome_(outcome) {}

  Status run() {
    hooks_.progress("filling the pools");
    if (auto started = workers_.start(options_.engines, options_.setup, options_.source_core,
                                      options_.target_core);
        !started) {
      return started;
    }
    start_peers();
    for (const std::string& name : options_.blocks) {
      if (auto done = run_block(name); !done) return done;
    }
    return {};
  }

 private:
  // A peer that can't start has a series without figures, and the others are measured.
  void start_peers() {
    for (const auto& [name, command] : options_.peers) {
      hooks_.progress(fmt::format("starting peer {}", name));
      auto started = PeerProcess::start(name, command, hooks_.interrupted);
      peers_.push_back(started ? std::move(*started) : nullptr);
      peer_failures_.push_back(started ? "" : started.error().what);
      if (peers_.back() != nullptr) {
        outcome_.peers.push_back({name, peers_.back()->version(), peers_.back()->settings()});
      }
    }
  }

  Status run_block(const std::string& name) {
    const auto block = make_block(name, options_.setup.pool_bytes);
    if (!block) return tl::unexpected(block.error());
    hooks_.progress(fmt::format("block {}: warming up", name));
    if (auto ready = workers_.prepare(name); !ready) return ready;
    for (const std::string& engine : options_.engines) {
      // Every page of both pools once, so that no turn meets an unmapped one.
      const RunOrder warm_up{Duration(0), options_.setup.pool_bytes, options_.batch};
      if (auto turn = workers_.run(engine, warm_up); !turn) return tl::unexpected(turn.error());
    }
    const std::size_t first = outcome_.series.size();
    for (const std::string& engine : options_.engines) {
      outcome_.series.push_back({engine, name, false, {}, {}});
    }
    for (std::size_t i = 0; i < options_.peers.size(); ++i) {
      outcome_.series.push_back({options_.peers[i].first, name, true, {}, peer_failures_[i]});
    }
    const std::size_t count = outcome_.series.size() - first;
    for (std::uint32_t round = 0; round < options_.rounds; ++round) {
      hooks_.progress(fmt::format("block {}: round {} of {}", name, round + 1, options_.rounds));
      // Begins with another one each time, so that none always follows the same neighbour.
      for (std::size_t turn = 0; turn < count; ++turn) {
        const std::size_t i = (round + turn) % count;
        if (auto done = take_turn(outcome_.series[first + i], *block, i); !done) return done;
      }
    }
    return {};
  }

  Status take_turn(Series& series, const Block& block, std::size_t index) {
    if (hooks_.interrupted()) return fail(FailureCode::kAborted, "interrupted");
    if (!series.is_peer) {
      const Duration duration(static_cast<std::int64_t>(options_.seconds * 1e9));
      auto result = workers_.run(series.engine, {duration, 0, options_.batch});
      if (!result) return tl::unexpected(result.error());
      series.gbps.push_back(result->target.gbps());
      outcome_.checked_pages += result->target.checked_pages;
      return {};
    }
    PeerProcess* peer = peers_[index - options_.engines.size()].get();
    if (peer == nullptr || !series.failure.empty()) return {};
    const std::string asked = block.has_aux ? block.name : fmt::format("{}", block.page_bytes);
    auto gbps = peer->run(asked, options_.seconds, options_.batch, hooks_.interrupted);
    if (gbps) {
      series.gbps.push_back(*gbps);
    } else {
      series.failure = gbps.error().what;
    }
    return {};
  }

  const TransferOptions& options_;
  const Hooks& hooks_;
  TransferOutcome& outcome_;
  WorkerPair workers_{hooks_};
  std::vector<std::unique_ptr<PeerProcess>> peers_;  // null: could not start
  std::vector<std::string> peer_failures_;
};

}  // namespace

TransferOutcome run_transfer_bench(const TransferOptions& options, const Hooks& hooks) {
  TransferOutcome outcome;
  TransferBench bench(options, hooks, outcome);
  if (auto done = bench.run(); !done) outcome.failure = done.error().what;
  return outcome;
}

}  // namespace kvferry::bench
