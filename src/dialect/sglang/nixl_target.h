// The target's side of what prefill ranks write through NIXL: the host program's own NIXL agent
// (node.h) takes the bytes, and no code of kvferry's has a part in it. So there is no fence (D3),
// no check (D4), no landing to report, and no proof that a writer's session is torn down: bytes
// that wait in a socket outlive the process that sent them, and NIXL says nothing of them. What a
// lost writer held stays held.
//
// Threads: as Transport says; it has none of its own.
#pragma once

#include <unordered_set>

#include "data_plane/region_uses.h"
#include "data_plane/transport.h"

namespace kvferry::sglang {

class NixlTarget final : public data_plane::Transport {
 public:
  static constexpr std::string_view kName = "nixl";

  // sink outlives the transport.
  explicit NixlTarget(data_plane::CompletionSink& sink) : sink_(sink), uses_(sink) {}

  data_plane::TransportProperties properties() const override {
    return {kName, false, false, false};
  }
  std::vector<std::uint8_t> local_blob() const override { return {}; }
  Status register_regions(std::span<const Region> regions) override;
  Status unregister_regions(data_plane::Unregister how) override {
    return uses_.unregister_regions(how);
  }
  Status open_session(const data_plane::SessionLink& link) override;
  void close_session(SessionEpoch session) override { sessions_.erase(session); }
  void open_grant(GrantId, std::vector<data_plane::SlotGrant>) override {}
  void fence(GrantId) override {}  // never asked for: there is none
  // A target sends nothing; whoever posts all the same is refused.
  void post(SessionEpoch session, std::span<const layout::Write> writes) override;
  void give_up(SessionEpoch, GrantSlot, Generation) override {}
  void stop() override {}

 private:
  data_plane::CompletionSink& sink_;
  data_plane::RegionUses uses_;
  std::unordered_set<SessionEpoch> sessions_;
};

}  // namespace kvferry::sglang
