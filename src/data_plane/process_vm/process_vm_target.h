// The target's side of process_vm writes (process_vm_transport.h): peers of this host write into
// this process by raw address, and no code of ours takes part. So there is no fence (D3), no check
// (D4) and no landing to report. What it does give is the proof that a writer's session is torn
// down: its process has ended, and process_vm_writev copies for a process that lives only, the call
// being part of it. That holds for writers that copy with that call, not for network cards or for
// transports whose bytes wait in a socket.
//
// A session's peer_blob (process_blob.h) names the process; its regions are not looked at.
//
// Threads: one of its own, which waits for the end of processes whose sessions were closed.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data_plane/process_vm/process_blob.h"
#include "data_plane/region_uses.h"
#include "data_plane/transport.h"

namespace kvferry::data_plane {

class ProcessVmTarget final : public Transport {
 public:
  // Closed sessions whose writers are waited for; beyond, the oldest is no longer, and what it
  // still held is held for good.
  static constexpr std::size_t kMaxClosed = 4'096;

  // sink outlives the transport.
  ProcessVmTarget(const TransportConfig& config, CompletionSink& sink);
  ~ProcessVmTarget() override;
  ProcessVmTarget(const ProcessVmTarget&) = delete;
  ProcessVmTarget& operator=(const ProcessVmTarget&) = delete;

  TransportProperties properties() const override;
  std::vector<std::uint8_t> local_blob() const override { return {}; }
  std::vector<TransportCounter> counters() const override;
  Status register_regions(std::span<const Region> regions) override;
  Status unregister_regions(Unregister how) override { return uses_.unregister_regions(how); }
  // Opens the process; fails when it has ended or is this one.
  Status open_session(const SessionLink& link) override;
  void close_session(SessionEpoch session) override;
  void open_grant(GrantId, std::vector<SlotGrant>) override {}
  void fence(GrantId) override {}  // never asked for: there is none
  // A target sends nothing; whoever posts all the same is refused.
  void post(SessionEpoch session, std::span<const layout::Write> writes) override;
  void give_up(SessionEpoch, GrantSlot, Generation) override {}
  void stop() override;

 private:
  struct Closed {
    SessionEpoch session;
    std::shared_ptr<const RemoteProcess> process;
  };

  void run();
  void watch_until_stopped(ThreadPlace& place);
  std::vector<SessionEpoch> take_ended();

  const TransportConfig config_;
  CompletionSink& sink_;
  RegionUses uses_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<SessionEpoch, std::shared_ptr<const RemoteProcess>> sessions_;
  std::deque<Closed> closed_;
  std::uint64_t torn_down_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvferry::data_plane
