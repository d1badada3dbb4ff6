// The target side of the lanes: the doors where connections arrive and prove themselves, and the
// receiving threads with the lanes.
//
// Threads: the public methods are the driver's. Loop 0 also accepts and authenticates; a lane then
// belongs to the loop that its serial number selects, so that every loop knows where to look for
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data_plane/lanes/lane_door.h"
#include "data_plane/lanes/target_lane.h"
#include "data_plane/receive_gate.h"

namespace kvferry::data_plane {

// Facts that no session can be blamed for; from any thread.
struct TargetCounters {
  std::atomic<std::uint64_t> strangers_full{0};  // the doorway was full
  std::atomic<std::uint64_t> strangers_timed_out{0};
  std::atomic<std::uint64_t> strangers_rejected{0};  // not our protocol, or a wrong proof
};

class LaneTarget final : public TargetLaneOwner {
 public:
  LaneTarget(const TransportConfig& config, CompletionSink& sink, ReceiveGate& gate);
  ~LaneTarget();  // as stop()
  LaneTarget(const LaneTarget&) = delete;
  LaneTarget& operator=(const LaneTarget&) = delete;

  void add_door(std::unique_ptr<LaneDoor> door);  // before start()
  Status start();
  void set_largest_write(std::uint64_t bytes) { limits_.largest_write_bytes = bytes; }
  // How its doors are found, and what frames it takes.
  TargetBlob blob() const;
  const TargetCounters& counters() const { return counters_; }

  void open_session(const SessionLink& link, std::shared_ptr<SessionSlots> slots);
  void close_session(SessionEpoch epoch);
  void stop();

  void on_lane_lost(TargetLane& lane, Failure cause) override;
  void on_lane_over(TargetLane& lane) override;
  void on_claims_ended(TargetSession& session) override;
  void on_resolve(TargetLane& lane, std::uint32_t lost_serial, std::uint64_t request,
                  std::vector<ResolveEntry> entries) override;

 private:
  using LaneKey = std::pair<SessionEpoch, std::uint32_t>;  // session and serial
  struct Part {
    explicit Part(ReceiveGate& gate) : reader(gate) {}
    EventLoop loop;
    ReceiveGate::Reader reader;
    std::map<LaneKey, std::unique_ptr<TargetLane>> lanes;  // its loop's thread only
  };
  class Stranger;
  class Porter;  // listens at a door

  std::size_t part_index(std::uint32_t serial) const { return serial % parts_.size(); }
  std::shared_ptr<TargetSession> find_session(SessionEpoch epoch);
  void accept_all(Porter& porter);
  bool has_muted_door() const;
  bool judge(Stranger& stranger);
  void admit(Stranger& stranger, const LaneResponse& response,
             std::shared_ptr<TargetSession> session);
  void dismiss(Stranger& stranger);
  void tick(std::size_t part_index, Instant now);
  void update_ticking(Part& part);
  void destroy_later(std::size_t part_index, LaneKey key);
  void close_lanes_of(Part& part, SessionEpoch epoch);
  void answer_resolve(LaneKey asker, std::uint32_t lost_serial, std::uint64_t request,
                      const std::vector<ResolveEntry>& entries);

  const TransportConfig config_;
  CompletionSink& sink_;
  ReceiveGate& gate_;
  TargetLimits limits_;
  TargetCounters counters_;
  std::vector<std::unique_ptr<Part>> parts_;

  std::mutex sessions_mutex_;
  std::unordered_map<SessionEpoch, std::shared_ptr<TargetSession>> sessions_;

  // Loop 0 only.
  std::vector<std::unique_ptr<Porter>> porters_;
  std::unordered_map<int, std::unique_ptr<Stranger>> strangers_;  // by descriptor
};

}  // namespace kvferry::data_plane
