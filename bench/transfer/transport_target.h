// The target end of a transport: a session, the grants of a block, and runs over them.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/transfer/engine.h"
#include "bench/transfer/target_sink.h"
#include "data_plane/transport.h"

namespace kvferry::bench {

class TransportTarget final : public TargetEngine {
 public:
  TransportTarget(std::string_view name, const WorkerSetup& setup, const Pool& pool)
      : name_(name), setup_(setup), pool_(pool) {}

  Status prepare(const Block& block, Channel& source) override;
  Result<RunResult> run(const RunOrder& order, Channel& source) override;
  std::string blob() const override;

 private:
  friend class FencedRun;
  friend class LostRun;
  friend class ReleasedPages;

  struct OpenGrant {
    GrantId id;               // the same number as its generation
    std::uint32_t index = 0;  // of the plan's grants
    std::uint32_t salt = 0;
    bool is_open = false;
    bool is_fencing = false;
    bool is_early = false;  // fenced before it was full
    Instant fence_at;
  };

  void plan(const Block& block);
  Result<RunResult> run_plain(const RunOrder& order, Channel& source);
  // Opens a grant that is not open in the slot and tells the source.
  Status open_next(std::uint32_t slot, Channel& source);
  void fence(std::uint32_t slot);
  // After the fence. Without give_back the grant's pages stay out of the plan.
  void close(std::uint32_t slot, bool give_back = true);
  // The slot of a grant whose fence is done.
  std::uint32_t slot_of(GrantId grant) const;
  // The bytes of a page in one region of the pool.
  std::span<std::byte> page_bytes(std::uint32_t region, std::uint32_t page) const;
  // Compares a sample of the pages of the grants that were filled in this run.
  Result<std::uint64_t> check() const;

  const std::string name_;
  const WorkerSetup setup_;
  const Pool pool_;
  Block block_;
  std::vector<std::uint32_t> order_;
  std::vector<layout::GrantExtent> extents_;
  std::deque<std::uint32_t> free_;    // grants that are not open
  std::vector<std::uint32_t> salts_;  // by grant: of its newest complete copy
  std::vector<OpenGrant> open_;       // by slot
  std::uint32_t open_slots_ = 0;
  std::uint32_t next_salt_ = 1;
  std::uint32_t first_salt_ = 1;  // of this run
  std::uint64_t next_generation_ = 1;
  SessionEpoch epoch_;
  std::unique_ptr<TargetSink> sink_;  // outlives the transport
  std::unique_ptr<data_plane::Transport> transport_;
};

}  // namespace kvferry::bench
