// A transport whose copies are nothing, so that a bench of whole rooms measures everything but the
// bytes: the target reports each grant as landed in full when it is opened, the source each write
// as landed when it is posted, and a fence is done at once. Nothing passes between the two ends.
//
// Threads: completions come within the call that causes them; there are no threads to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data_plane/transport.h"

namespace kvferry::bench {

class NullTransport final : public data_plane::Transport {
 public:
  // pages_per_room: a grant that begins with page k * pages_per_room has aux slot k.
  NullTransport(data_plane::CompletionSink& sink, std::uint32_t pages_per_room, bool fences = true)
      : sink_(sink), pages_per_room_(pages_per_room), fences_(fences) {}

  data_plane::TransportProperties properties() const override {
    return {"null", true, fences_, false};
  }
  std::vector<data_plane::TransportCounter> counters() const override;
  std::vector<std::uint8_t> local_blob() const override { return {0}; }
  Status register_regions(std::span<const Region> regions) override;
  Status unregister_regions(data_plane::Unregister) override { return {}; }
  Status open_session(const data_plane::SessionLink&) override { return {}; }
  void close_session(SessionEpoch) override {}
  void open_grant(GrantId grant, std::vector<data_plane::SlotGrant> slots) override;
  void fence(GrantId grant) override { sink_.fence_done(grant); }
  void post(SessionEpoch session, std::span<const layout::Write> writes) override;
  void give_up(SessionEpoch, GrantSlot, Generation) override {}
  void stop() override {}

 private:
  void land(const data_plane::SlotGrant& slot);

  data_plane::CompletionSink& sink_;
  const std::uint32_t pages_per_room_;
  const bool fences_;
  std::vector<Region> regions_;
  std::vector<layout::Landing> landings_;
  std::vector<layout::WriteCompletion> completions_;
  std::atomic<std::uint64_t> writes_{0};
};

}  // namespace kvferry::bench
