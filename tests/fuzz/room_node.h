// One process around one protocol: keeps what the protocol orders and checks what may be checked
// from outside. It decides nothing: who takes its frames, dials and writes is RoomWorld.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "base/prng.h"
#include "core/protocol.h"

namespace kvferry::fuzz {

class RoomNode final : public core::ActionSink, public core::Environment {
 public:
  RoomNode(std::string name, Role role, std::uint32_t tp_rank, std::uint32_t tp_size,
           core::TransportClass transport_class);

  // Steps until no timer is due, and checks the invariants after each step.
  void step(Instant now, std::vector<core::Event> events);
  void step(Instant now, core::Event event);

  const std::string& key() const { return key_; }
  Role role() const { return self_.role; }
  const wire::Introduction& self() const { return self_; }
  core::PeerRow row() const;
  core::Protocol& protocol() { return *protocol_; }
  core::Snapshot snapshot(Instant now) const { return protocol_->snapshot(now, 100); }

  // --- the caller's side: keeps the contract of the public API ---
  std::uint64_t open(Instant now, RoomId room, Binding binding);
  void name_prefill(Instant now, std::uint64_t owner);
  void give_metadata(Instant now, std::uint64_t owner, std::uint32_t pages,
                     std::uint32_t expected_grants);
  void init_sender(Instant now, std::uint64_t owner, std::uint32_t pages);
  void send(Instant now, std::uint64_t owner, std::uint32_t pages);
  void abort(Instant now, std::uint64_t owner);
  void clear(Instant now, std::uint64_t owner);
  // Numbers of every room ever opened here.
  std::uint64_t owners() const { return next_owner_ - 1; }

  // --- what the protocol ordered and nobody has taken yet ---
  std::deque<core::DialPeer> dials;
  std::deque<core::SendFrame> frames;
  std::deque<core::ResolvePrefill> queries;
  std::deque<GrantId> fences;
  std::deque<layout::Write> writes;  // each with its session in write_sessions
  std::deque<SessionEpoch> write_sessions;

  // --- what is known of it, as names for hostile events ---
  std::map<PeerId, PeerAddress> peers;
  std::vector<SessionEpoch> sessions;
  std::vector<GrantId> grants;
  std::vector<core::GrantedSlot> slots;
  std::vector<layout::Write> posted;

  bool was_fenced(GrantId grant) const { return fenced_.contains(grant); }
  // The transport has done the fence: pages of the grant may leave.
  void note_fenced(GrantId grant) { open_grants_.erase(grant); }

  // --- ActionSink ---
  void publish_status(std::uint64_t owner, KvPoll status) override;
  bool publish_terminal(std::uint64_t owner, KvPoll status,
                        const std::optional<Failure>& failure) override;
  void publish_attempt(core::ReceiverId, AttemptId) override {}
  void publish_prefix(SenderId, std::uint32_t) override {}
  void publish_landed_bytes(SenderId, std::uint64_t) override {}
  void release_pages(core::ReleasePages released) override;
  void resolve_prefill(core::ResolvePrefill query) override { queries.push_back(query); }
  void dial_peer(core::DialPeer dial) override;
  void hang_up(PeerId peer) override { peers.erase(peer); }
  void send_frame(core::SendFrame send) override { frames.push_back(std::move(send)); }
  Status open_data_session(core::OpenDataSession open) override;
  void close_data_session(SessionEpoch) override {}
  void open_grant(core::OpenGrant open) override;
  void fence_grant(GrantId grant) override;
  void post_writes(core::PostWrites post) override;
  void give_up_writes(core::GiveUpWrites) override {}
  Status inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) override;
  void count(std::string_view, std::uint64_t) override {}
  void note(std::string_view) override {}

  // --- Environment ---
  std::uint64_t random_u64() override { return prng_.next(); }
  void fill_random(std::span<std::uint8_t> out) override { prng_.fill(out); }
  wire::Proof hmac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) override {
    return hmac_sha256(key, data);
  }

 private:
  struct Cell {
    KvPoll status = KvPoll::kBootstrapping;
    bool cleared = false;
    bool initialized = false;
    bool given = false;
    std::vector<PageIndex> pages;  // with the protocol, or the caller's after an unread Success
  };

  std::vector<PageIndex> take_pages(Cell& cell, std::uint32_t count);
  void expect_closed(const std::vector<PageIndex>& pages, const char* when) const;

  const std::string key_;
  const core::TransportClass transport_class_;
  Prng prng_;
  const wire::Introduction self_;
  std::unique_ptr<core::Protocol> protocol_;
  std::map<std::uint64_t, Cell> cells_;
  std::uint64_t next_owner_ = 1;
  std::set<PageIndex> pages_out_;  // with the protocol
  std::map<GrantId, std::vector<PageIndex>> open_grants_;
  std::set<GrantId> fenced_;  // asked for, done or not
  std::map<SessionEpoch, std::vector<RegionShape>> peer_regions_;
};

}  // namespace kvferry::fuzz
