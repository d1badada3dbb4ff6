// What is registered with a transport, who uses it, and when it is free again. Stands between a
// transport and its sink, since every use ends with a completion: a posted write with its outcome
// or, after unknown, with quiet; a grant with its fence. Ends are told and counted in one step, so
// that whoever has heard of the last one finds the regions unused.
//
// Threads: register_regions, unregister_regions and begin_* are the driver's. Completions pass
// through from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_set>
#include <vector>

#include "data_plane/transport.h"

namespace kvferry::data_plane {

class RegionUses final : public CompletionSink {
 public:
  explicit RegionUses(CompletionSink& sink) : sink_(sink) {}

  // Refused while regions are registered or still used, and for another shape than before (number
  // of regions, item_bytes, item_count) while sessions are open, whose peers know that shape.
  Status register_regions(std::span<const Region> regions, bool has_sessions);
  Status unregister_regions(Unregister how);

  // False, and nothing is counted, unless regions are registered: the writes are to be refused past
  // this object, the grant is to take none.
  bool begin_writes(std::size_t count);
  bool begin_grant(GrantId grant);

  void writes_completed(std::span<const WriteCompletion> completions) noexcept override;
  void writes_quiet(SessionEpoch session, std::span<const TicketId> tickets) noexcept override;
  void writes_landed(std::span<const Landing> landings) noexcept override;
  void write_torn(const Landing& landing, std::string_view how) noexcept override;
  void fence_done(GrantId grant) noexcept override;
  void lane_failed(SessionEpoch session, Failure cause) noexcept override;
  void session_unreachable(SessionEpoch session, Failure cause) noexcept override;
  void session_torn_down(SessionEpoch session) noexcept override;
  void regions_released() noexcept override;

 private:
  enum class State : std::uint8_t { kNone, kRegistered, kReleasing };

  // With the lock held.
  void release_if_unused() noexcept;

  CompletionSink& sink_;
  std::mutex mutex_;
  State state_ = State::kNone;
  std::size_t writes_ = 0;
  std::unordered_set<GrantId> grants_;
  std::vector<Region> regions_;  // of the latest registration
};

}  // namespace kvferry::data_plane
