#include "data_plane/tcp/tcp_transport.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "data_plane/host_regions.h"
#include "data_plane/receive_gate.h"
#include "data_plane/tcp/source_session.h"
#include "data_plane/tcp/tcp_target.h"

namespace kvferry::data_plane::tcp {
namespace {

constexpr TransportProperties kProperties{"tcp", true, true, false};
constexpr milliseconds kMaxTick{50};
constexpr milliseconds kMinTick{5};

class TcpSourceTransport final : public Transport {
 public:
  TcpSourceTransport(const TransportConfig& config, CompletionSink& sink)
      : config_(config), sink_(sink) {}
  ~TcpSourceTransport() override { stop(); }

  Status start() {
    const Duration shortest = milliseconds(std::min(
        {config_.lane_heartbeat_ms, config_.lane_timeout_ms / 4, config_.write_timeout_ms / 4}));
    auto opened =
        loop_.open(std::clamp<Duration>(shortest / 2, kMinTick, kMaxTick), [this](Instant now) {
          for (const auto& session : live_) session->tick(now);
        });
    if (!opened) return opened;
    loop_.start();
    return {};
  }

  TransportProperties properties() const override { return kProperties; }

  std::vector<std::uint8_t> local_blob() const override {
    return encode_blob(TargetBlob{{}, 0, config_.frame_bytes, config_.frame_writes});
  }

  std::vector<TransportCounter> counters() const override {
    return {{"queued_writes_refused", queued_writes_refused_.load(std::memory_order_relaxed)}};
  }

  Status register_regions(std::span<const Region> regions) override {
    if (auto checked = check_host_regions(regions, kProperties.name); !checked) return checked;
    regions_.assign(regions.begin(), regions.end());
    return {};
  }

  Status open_session(const SessionLink& link) override {
    const auto target = parse_blob(link.peer_blob);
    if (!target || target->host.empty() || target->port == 0 || target->frame_bytes == 0 ||
        target->frame_writes == 0) {
      return fail(FailureCode::kMalformed, "the peer's tcp address blob can't be used",
                  FailureWhere::kPeer);
    }
    if (sessions_.contains(link.epoch)) {
      return fail(FailureCode::kWrongState, "a session of this epoch is open already");
    }
    auto session = std::make_shared<SourceSession>(loop_, sink_, config_, link, *target, regions_,
                                                   queued_writes_refused_);
    sessions_.emplace(link.epoch, session);
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
    loop_.post([this, session = std::move(found->second)] {
      session->close();
      std::erase(live_, session);
      loop_.wants_ticks(!live_.empty());
    });
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
    auto copy = std::make_shared<std::vector<layout::Write>>(writes.begin(), writes.end());
    if (found == sessions_.end()) {
      loop_.post([this, epoch, copy] { refuse(epoch, *copy); });
      return;
    }
    loop_.post([session = found->second, copy, deadline] { session->enqueue(*copy, deadline); });
  }

  void give_up(SessionEpoch epoch, GrantSlot slot, Generation generation) override {
    const auto found = sessions_.find(epoch);
    if (found == sessions_.end() || slot.value() >= config_.max_grant_slots) return;
    found->second->mark_given_up(slot, generation);
    loop_.post([session = found->second, slot, generation] { session->give_up(slot, generation); });
  }

  void stop() override {
    for (auto& [epoch, session] : sessions_) {
      loop_.post([session = session] { session->close(); });
    }
    sessions_.clear();
    loop_.post([this] { live_.clear(); });
    loop_.stop();
  }

 private:
  void refuse(SessionEpoch epoch, std::span<const layout::Write> writes) {
    std::vector<WriteCompletion> completions;
    for (const layout::Write& write : writes) {
      completions.push_back({epoch, write.ticket, layout::WriteOutcome::kRefused});
    }
    sink_.writes_completed(completions);
  }

  const TransportConfig config_;
  CompletionSink& sink_;
  std::vector<Region> regions_;
  std::atomic<std::uint64_t> queued_writes_refused_{0};
  EventLoop loop_;
  std::unordered_map<SessionEpoch, std::shared_ptr<SourceSession>> sessions_;  // the driver's
  std::vector<std::shared_ptr<SourceSession>> live_;                           // the loop's
};

class TcpTargetTransport final : public Transport {
 public:
  TcpTargetTransport(const TransportConfig& config, CompletionSink& sink)
      : config_(config),
        sink_(sink),
        gate_(config.max_grant_slots, sink),
        target_(config, sink, gate_) {}
  ~TcpTargetTransport() override { stop(); }

  Status start() {
    if (auto listening = target_.listen(); !listening) return listening;
    target_.start();
    return {};
  }

  TransportProperties properties() const override { return kProperties; }

  std::vector<std::uint8_t> local_blob() const override {
    return encode_blob(TargetBlob{target_.host(), target_.port(), config_.frame_bytes,
                                  std::min(config_.frame_writes, kMaxFrameWrites)});
  }

  std::vector<TransportCounter> counters() const override {
    const TargetCounters& counters = target_.counters();
    return {
        {"lane_strangers_full", counters.strangers_full.load(std::memory_order_relaxed)},
        {"lane_strangers_rejected", counters.strangers_rejected.load(std::memory_order_relaxed)},
        {"lane_strangers_timed_out", counters.strangers_timed_out.load(std::memory_order_relaxed)}};
  }

  Status register_regions(std::span<const Region> regions) override {
    if (auto checked = check_host_regions(regions, kProperties.name); !checked) return checked;
    gate_.register_regions(regions);
    target_.set_largest_write(gate_.largest_item_bytes());
    return {};
  }

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
    gate_.open_grant(grant, std::move(slots));
  }
  void fence(GrantId grant) override { gate_.fence(grant); }

  // A target posts nothing; whoever asks it to learns that nothing will land.
  void post(SessionEpoch epoch, std::span<const layout::Write> writes) override {
    std::vector<WriteCompletion> completions;
    for (const layout::Write& write : writes) {
      completions.push_back({epoch, write.ticket, layout::WriteOutcome::kRefused});
    }
    sink_.writes_completed(completions);
  }
  void give_up(SessionEpoch, GrantSlot, Generation) override {}

  void stop() override {
    target_.stop();
    gate_.stop();
  }

 private:
  const TransportConfig config_;
  CompletionSink& sink_;
  ReceiveGate gate_;
  TcpTarget target_;
};

template <typename T>
Result<std::unique_ptr<Transport>> make_started(const TransportConfig& config,
                                                CompletionSink& sink) {
  auto transport = std::make_unique<T>(config, sink);
  if (auto started = transport->start(); !started) return tl::unexpected(started.error());
  return transport;
}

}  // namespace

Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportConfig& config,
                                                      CompletionSink& sink) {
  if (config.frame_bytes == 0 || config.frame_writes == 0 || config.lane_timeout_ms == 0 ||
      config.lane_heartbeat_ms == 0) {
    return fail(FailureCode::kInvalidArgument,
                "frame_bytes, frame_writes, lane_heartbeat_ms and lane_timeout_ms can't be 0");
  }
  if (config.role == Role::kPrefill) return make_started<TcpSourceTransport>(config, sink);
  return make_started<TcpTargetTransport>(config, sink);
}

}  // namespace kvferry::data_plane::tcp
