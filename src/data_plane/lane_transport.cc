#include "data_plane/lane_transport.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "data_plane/host_regions.h"
#include "data_plane/lanes/lane_target.h"
#include "data_plane/lanes/source_session.h"
#include "data_plane/receive_gate.h"
#include "data_plane/region_uses.h"
#include "data_plane/shm/shm_door.h"
#include "data_plane/shm/shm_source_lane.h"
#include "data_plane/tcp/tcp_door.h"
#include "data_plane/tcp/tcp_source_lane.h"

namespace kvferry::data_plane {
namespace {

TransportProperties properties_of(LaneChoice choice) {
  const std::string_view name = choice == LaneChoice::kTcp   ? "tcp"
                                : choice == LaneChoice::kShm ? "shm"
                                                             : "auto";
  return {name, true, true, false};
}

std::vector<std::string_view> offers_of(LaneChoice choice) {
  if (choice == LaneChoice::kAuto) return {"auto", "shm", "tcp"};
  return {properties_of(choice).name};
}

// Tells that no byte of them was or will be written.
void refuse(CompletionSink& sink, SessionEpoch epoch, std::span<const layout::Write> writes) {
  std::vector<WriteCompletion> completions;
  for (const layout::Write& write : writes) {
    completions.push_back({epoch, write.ticket, layout::WriteOutcome::kRefused});
  }
  sink.writes_completed(completions);
}

constexpr milliseconds kMaxTick{50};
constexpr milliseconds kMinTick{5};

class LaneSourceTransport final : public Transport {
 public:
  LaneSourceTransport(LaneChoice choice, const TransportConfig& config, CompletionSink& sink)
      : choice_(choice), config_(config), sink_(sink), uses_(sink) {}
  ~LaneSourceTransport() override { stop(); }
  LaneSourceTransport(const LaneSourceTransport&) = delete;
  LaneSourceTransport& operator=(const LaneSourceTransport&) = delete;

  Status start() {
    const Duration shortest = milliseconds(std::min(
        {config_.lane_heartbeat_ms, config_.lane_timeout_ms / 4, config_.write_timeout_ms / 4}));
    auto opened = loop_.open(
        {std::clamp<Duration>(shortest / 2, kMinTick, kMaxTick),
         std::chrono::microseconds(config_.lane_poll_us)},
        [this](Instant now) {
          for (const auto& session : live_) session->tick(now);
          std::erase_if(closing_, [](const auto& session) { return session->is_quiet(); });
          loop_.wants_ticks(!live_.empty() || !closing_.empty());
        },
        enrol(config_.threads, "kvf-send", "writes to peers"));
    if (!opened) return opened;
    loop_.start();
    return {};
  }

  TransportProperties properties() const override { return properties_of(choice_); }
  std::vector<std::string_view> offers() const override { return offers_of(choice_); }

  std::vector<std::uint8_t> local_blob() const override {
    TargetBlob blob;
    blob.frame_bytes = config_.frame_bytes;
    blob.frame_writes = config_.frame_writes;
    return encode_blob(blob);
  }

  std::vector<TransportCounter> counters() const override {
    return {{"queued_writes_refused", queued_writes_refused_.load(std::memory_order_relaxed)}};
  }

  Status register_regions(std::span<const Region> regions) override {
    if (auto checked = check_host_regions(regions, properties().name); !checked) return checked;
    if (choice_ != LaneChoice::kTcp) {
      if (auto checked = check_memory_files(regions); !checked) return checked;
    }
    if (auto taken = uses_.register_regions(regions, !sessions_.empty()); !taken) return taken;
    // No write uses the former ones; those that will come are posted to the loop after this.
    loop_.post([this, added = std::vector<Region>(regions.begin(), regions.end())]() mutable {
      regions_ = std::move(added);
      for (const auto& session : live_) session->on_regions_changed();
    });
    return {};
  }
  Status unregister_regions(Unregister how) override { return uses_.unregister_regions(how); }

  Status open_session(const SessionLink& link) override {
    const auto target = parse_blob(link.peer_blob);
    if (!target || target->frame_bytes == 0 || target->frame_writes == 0) {
      return fail(FailureCode::kMalformed, "the peer's address blob can't be used",
                  FailureWhere::kPeer);
    }
    std::vector<LanePath> paths = paths_to(*target);
    if (paths.empty()) {
      return fail(FailureCode::kPeerUnreachable,
                  "the peer has no address for transport " + std::string(properties().name),
                  FailureWhere::kPath);
    }
    if (sessions_.contains(link.epoch)) {
      return fail(FailureCode::kWrongState, "a session of this epoch is open already");
    }
    auto session = std::make_shared<SourceSession>(
        loop_, uses_, config_, link, *target, std::move(paths), regions_, queued_writes_refused_);
    {
      std::lock_guard lock(sessions_mutex_);
      sessions_.emplace(link.epoch, session);
    }
    loop_.post([this, session] {
      live_.push_back(session);
      loop_.wants_ticks(true);
      session->start();
    });
    return {};
  }

  void close_session(SessionEpoch epoch) override {
    const auto found = sessions_.find(epoch);
    if (found == sessions_.end()) return;
    loop_.post([this, session = found->second] {
      session->close();
      std::erase(live_, session);
      if (!session->is_quiet()) closing_.push_back(session);
      loop_.wants_ticks(!live_.empty() || !closing_.empty());
    });
    std::lock_guard lock(sessions_mutex_);
    sessions_.erase(found);
  }

  // Grants are the target's; a source that is asked to fence has nothing that could land here.
  void open_grant(GrantId, std::vector<SlotGrant>) override {}
  void fence(GrantId grant) override {
    loop_.post([this, grant] { sink_.fence_done(grant); });
  }

  void post(SessionEpoch epoch, std::span<const layout::Write> writes) override {
    const auto found = sessions_.find(epoch);
    const Instant deadline = monotonic_now() + milliseconds(config_.write_timeout_ms);
    // Past the count of uses when they are not counted.
    const bool is_use = uses_.begin_writes(writes.size());
    if (!is_use || found == sessions_.end()) {
      auto copy = std::make_shared<std::vector<layout::Write>>(writes.begin(), writes.end());
      loop_.post([epoch, copy, &sink = is_use ? uses_ : sink_] { refuse(sink, epoch, *copy); });
      return;
    }
    found->second->post(writes, deadline);
  }

  void give_up(SessionEpoch epoch, GrantSlot slot, Generation generation) override {
    const auto found = sessions_.find(epoch);
    if (found == sessions_.end() || slot.value() >= config_.max_grant_slots) return;
    found->second->mark_given_up(slot, generation);
    loop_.post([session = found->second, slot, generation] { session->give_up(slot, generation); });
  }

  void stop() override {
    for (const auto& [epoch, open] : sessions_) {
      loop_.post([session = open] { session->close(); });
    }
    {
      std::lock_guard lock(sessions_mutex_);
      sessions_.clear();
    }
    loop_.stop();
    // No thread is left: what has not become quiet by now is not reported.
    live_.clear();
    closing_.clear();
  }

  std::vector<PathReport> paths() const override {
    std::lock_guard lock(sessions_mutex_);
    std::vector<PathReport> reports;
    reports.reserve(sessions_.size());
    for (const auto& [epoch, session] : sessions_) reports.push_back(session->path());
    return reports;
  }

 private:
  std::vector<LanePath> paths_to(const TargetBlob& target) {
    std::vector<LanePath> paths;
    if (choice_ != LaneChoice::kTcp && !target.unix_path.empty()) {
      paths.push_back({"shm", config_.shm_lanes, true,
                       [this](LaneOwner& owner, const LaneSettings& settings,
                              std::uint32_t& next_serial) -> std::unique_ptr<SourceLane> {
                         return std::make_unique<shm::ShmSourceLane>(
                             loop_, owner, settings, next_serial, config_.shm_ring_entries);
                       }});
    }
    if (choice_ != LaneChoice::kShm && !target.host.empty() && target.port != 0) {
      paths.push_back({"tcp", config_.lanes_per_peer, false,
                       [this](LaneOwner& owner, const LaneSettings& settings,
                              std::uint32_t& next_serial) -> std::unique_ptr<SourceLane> {
                         return std::make_unique<tcp::TcpSourceLane>(loop_, owner, settings,
                                                                     next_serial);
                       }});
    }
    return paths;
  }

  const LaneChoice choice_;
  const TransportConfig config_;
  CompletionSink& sink_;
  RegionUses uses_;
  std::vector<Region> regions_;  // the loop's
  std::atomic<std::uint64_t> queued_writes_refused_{0};
  EventLoop loop_;
  mutable std::mutex sessions_mutex_;  // changed by the driver, read by whoever reports
  std::unordered_map<SessionEpoch, std::shared_ptr<SourceSession>> sessions_;
  // The loop's: open sessions, and closed ones that are not quiet yet.
  std::vector<std::shared_ptr<SourceSession>> live_;
  std::vector<std::shared_ptr<SourceSession>> closing_;
};

class LaneTargetTransport final : public Transport {
 public:
  LaneTargetTransport(LaneChoice choice, const TransportConfig& config, CompletionSink& sink)
      : choice_(choice),
        config_(config),
        sink_(sink),
        uses_(sink),
        gate_(config.max_grant_slots, uses_, config.threads),
        target_(config, sink, gate_) {}
  ~LaneTargetTransport() override { stop(); }
  LaneTargetTransport(const LaneTargetTransport&) = delete;
  LaneTargetTransport& operator=(const LaneTargetTransport&) = delete;

  Status start() {
    if (choice_ != LaneChoice::kTcp) {
      auto door = shm::ShmDoor::open(config_);
      if (door) {
        target_.add_door(std::move(*door));
      } else if (choice_ == LaneChoice::kShm) {
        return tl::unexpected(door.error());
      } else {
        log::warning("data plane: no shared memory with other processes of this host: {}",
                     door.error().what);
      }
    }
    if (choice_ != LaneChoice::kShm) {
      auto door = tcp::TcpDoor::open(config_);
      if (!door) return tl::unexpected(door.error());
      target_.add_door(std::move(*door));
    }
    return target_.start();
  }

  TransportProperties properties() const override { return properties_of(choice_); }
  std::vector<std::string_view> offers() const override { return offers_of(choice_); }

  std::vector<std::uint8_t> local_blob() const override { return encode_blob(target_.blob()); }

  std::vector<TransportCounter> counters() const override {
    std::vector<TransportCounter> counts = gate_.counters();
    const TargetCounters& door = target_.counters();
    counts.push_back({"lane_strangers_full", door.strangers_full.load()});
    counts.push_back({"lane_strangers_rejected", door.strangers_rejected.load()});
    counts.push_back({"lane_strangers_timed_out", door.strangers_timed_out.load()});
    return counts;
  }

  Status register_regions(std::span<const Region> regions) override {
    if (auto checked = check_host_regions(regions, properties().name); !checked) return checked;
    if (auto taken = uses_.register_regions(regions, gate_.has_sessions()); !taken) return taken;
    gate_.register_regions(regions);
    target_.set_largest_write(gate_.largest_item_bytes());
    return {};
  }
  Status unregister_regions(Unregister how) override { return uses_.unregister_regions(how); }

  Status open_session(const SessionLink& link) override {
    auto slots = gate_.open_session(link.epoch);
    if (!slots) {
      return fail(FailureCode::kWrongState, "a session of this epoch is open already");
    }
    target_.open_session(link, std::move(slots));
    return {};
  }

  void close_session(SessionEpoch epoch) override {
    gate_.close_session(epoch);
    target_.close_session(epoch);
  }

  void open_grant(GrantId grant, std::vector<SlotGrant> slots) override {
    if (!uses_.begin_grant(grant)) slots.clear();  // no write of it may land
    gate_.open_grant(grant, std::move(slots));
  }
  void fence(GrantId grant) override { gate_.fence(grant); }

  // A target posts nothing; whoever asks it to learns that nothing will land.
  void post(SessionEpoch epoch, std::span<const layout::Write> writes) override {
    refuse(sink_, epoch, writes);
  }
  void give_up(SessionEpoch, GrantSlot, Generation) override {}

  void stop() override {
    target_.stop();
    gate_.stop();
  }

 private:
  const LaneChoice choice_;
  const TransportConfig config_;
  CompletionSink& sink_;
  RegionUses uses_;
  ReceiveGate gate_;
  LaneTarget target_;
};

template <typename T>
Result<std::unique_ptr<Transport>> make_started(LaneChoice choice, const TransportConfig& config,
                                                CompletionSink& sink) {
  auto transport = std::make_unique<T>(choice, config, sink);
  if (auto started = transport->start(); !started) return tl::unexpected(started.error());
  return transport;
}

}  // namespace

Result<std::unique_ptr<Transport>> make_lane_transport(LaneChoice choice,
                                                       const TransportConfig& config,
                                                       CompletionSink& sink) {
  if (config.frame_bytes == 0 || config.frame_writes == 0 || config.lane_timeout_ms == 0 ||
      config.lane_heartbeat_ms == 0) {
    return fail(FailureCode::kInvalidArgument,
                "frame_bytes, frame_writes, lane_heartbeat_ms and lane_timeout_ms can't be 0");
  }
  if (choice != LaneChoice::kTcp && (!shm::is_ring_size(config.shm_ring_entries) ||
                                     config.shm_ring_entries < config.frame_writes)) {
    return fail(FailureCode::kInvalidArgument, "shm_ring_entries must be a power of two from " +
                                                   std::to_string(shm::kMinRingEntries) + " to " +
                                                   std::to_string(shm::kMaxRingEntries) +
                                                   " and not below frame_writes");
  }
  if (config.role == Role::kPrefill) return make_started<LaneSourceTransport>(choice, config, sink);
  return make_started<LaneTargetTransport>(choice, config, sink);
}

}  // namespace kvferry::data_plane
