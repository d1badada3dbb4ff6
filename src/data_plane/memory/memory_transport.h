// Transport between two ends in one process, for tests: the same receive gate as the real ones,
// with a fabric in between that loses, delays, doubles and stalls on request.
//
// Threads: the source end has lanes_per_peer threads, which copy as receiving threads of the
// target.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/instant.h"
#include "data_plane/incoming_frame.h"
#include "data_plane/memory/memory_fabric.h"
#include "data_plane/region_uses.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane {

class MemoryTransport final : public Transport {
 public:
  // sink and fabric's other users outlive the transport.
  MemoryTransport(const TransportConfig& config, CompletionSink& sink,
                  std::shared_ptr<MemoryFabric> fabric);
  ~MemoryTransport() override;
  MemoryTransport(const MemoryTransport&) = delete;
  MemoryTransport& operator=(const MemoryTransport&) = delete;

  TransportProperties properties() const override;
  std::vector<std::uint8_t> local_blob() const override;
  Status register_regions(std::span<const Region> regions) override;
  Status unregister_regions(Unregister how) override;
  std::vector<TransportCounter> counters() const override;
  Status open_session(const SessionLink& link) override;
  void close_session(SessionEpoch session) override;
  void open_grant(GrantId grant, std::vector<SlotGrant> slots) override;
  void fence(GrantId grant) override;
  void post(SessionEpoch session, std::span<const layout::Write> writes) override;
  void give_up(SessionEpoch session, GrantSlot slot, Generation generation) override;
  void stop() override;

 private:
  struct Ticket {
    SessionEpoch session;
    std::uint64_t endpoint = 0;
    layout::Write write;
    const std::byte* from = nullptr;
    Instant deadline;
    std::uint32_t copies = 0;   // queued or being carried
    std::uint32_t carried = 0;  // being carried now
    bool is_altered = false;    // by the fabric, on its way
    bool is_told = false;       // the source has its outcome
    bool is_quiet_due = false;  // told unknown, quiet to follow when no copy is left
    bool has_result = false;
    WriteResult result = WriteResult::kNotKnown;
    std::atomic<bool> given_up{false};
    std::atomic<bool> cancelled{false};
  };
  using TicketPtr = std::shared_ptr<Ticket>;
  using Readers = std::unordered_map<std::uint64_t, std::unique_ptr<ReceiveGate::Reader>>;

  // Told under the fabric's lock, so that unknown comes before quiet whichever threads they come
  // from.
  struct News {
    std::vector<WriteCompletion> completions;
    std::vector<WriteCompletion> quiet;  // outcome unused
    std::vector<SessionEpoch> lost_lanes;
  };

  void run();
  TicketPtr take_next();
  WriteResult carry(Ticket& ticket, MemoryFabric::Endpoint& endpoint, ReceiveGate::Reader& reader,
                    News& news);
  bool wait_out_stall(Ticket& ticket, MemoryFabric::Endpoint& endpoint);
  void finish(const TicketPtr& ticket, WriteResult result, News& news);
  void expire(Instant now, News& news);
  void end_as_unknown(Ticket& ticket, News& news);
  void drop_queued(const TicketPtr& ticket);
  void tell_quiet_if_due(Ticket& ticket, News& news);
  void forget_ended();
  void tell(News& news);
  const std::byte* source_address(const layout::Write& write) const;

  const TransportConfig config_;
  CompletionSink& sink_;
  RegionUses uses_;
  const std::shared_ptr<MemoryFabric> fabric_;
  std::vector<Region> regions_;  // the driver's

  // Target end.
  std::shared_ptr<MemoryFabric::Endpoint> endpoint_;
  std::uint64_t endpoint_id_ = 0;

  // Source end, under the fabric's lock.
  std::unordered_map<SessionEpoch, std::uint64_t> sessions_;  // the target's endpoint
  std::deque<TicketPtr> queue_;
  std::vector<TicketPtr> pending_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::vector<std::shared_ptr<ReceiveGate>> used_gates_;  // outlive the threads' readers
};

}  // namespace kvferry::data_plane
