// One process life in the fake world: a protocol, the callers above it (status cells, pages) and
// the memory below it. It is the protocol's sink and environment, and checks what a caller relies
// on: one terminal status (S5), every page back exactly once, none before its grant is closed (S1).
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "base/prng.h"
#include "core/protocol.h"
#include "engine_memory.h"

namespace kvferry::core::fake {

class World;

struct RoomName {
  RoomId room;
  Binding binding;
  friend auto operator<=>(const RoomName&, const RoomName&) = default;
};
inline RoomName name_room(std::uint64_t room, std::uint64_t binding = 1) {
  return {RoomId(room), Binding{0, room * 1'000 + binding}};
}

struct ProcessSetup {
  Role role = Role::kPrefill;
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t pages = 32;
  Options options;
  TransportClass transport_class;
  std::function<void(wire::Introduction&)> adjust;  // unset: as the others
};

// What a caller holds of one room.
struct Cell {
  RoomName name;
  KvPoll status = KvPoll::kBootstrapping;
  std::optional<Failure> failure;
  AttemptId attempt;
  bool read_success = false;
  bool cleared = false;
  std::vector<std::uint32_t> pages;  // given to send_metadata() or send(), in order
  std::optional<std::uint32_t> prefix;
  std::uint64_t landed_bytes = 0;
  std::vector<std::vector<std::uint32_t>> released;
};

class Process final : public ActionSink, public Environment {
 public:
  Process(World& world, std::string name, std::uint32_t life, ProcessSetup setup);

  // --- the caller's side; an owner is a ReceiverId's or a SenderId's value ---
  std::uint64_t open(RoomName room);
  void init_receiver(std::uint64_t owner, std::string instance = "prefill");
  void give(std::uint64_t owner, std::vector<std::uint32_t> pages, std::int64_t aux_slot = -1,
            std::uint32_t expected_grants = 1, std::uint32_t prefix_pages = 0,
            std::vector<std::uint32_t> state_slots = {});
  void init_sender(std::uint64_t owner, std::uint32_t page_count, std::int64_t aux_slot = -1);
  void send(std::uint64_t owner, std::vector<std::uint32_t> pages,
            std::vector<std::uint32_t> state_slots = {});
  void abort(std::uint64_t owner, std::string_view what = "the client went away");
  KvPoll poll(std::uint64_t owner);
  void clear(std::uint64_t owner);
  // The caller's cell is Failed, and its event is not yet on its way.
  void win_cell(std::uint64_t owner);
  const Cell& cell(std::uint64_t owner) const { return cells_.at(owner); }
  FailureCode code(std::uint64_t owner) const;
  std::string cause(std::uint64_t owner) const;
  const std::map<std::uint64_t, Cell>& cells() const { return cells_; }
  // Given to the core and not back.
  const std::multiset<std::uint32_t>& pages_out() const { return pages_out_; }

  // --- the world's side ---
  void receive(Event event) { inbox_.push_back(std::move(event)); }
  bool has_work(Instant now) const;
  void step(Instant now);
  void die() { alive_ = false; }
  void set_paused(bool paused) { paused_ = paused; }
  bool is_alive() const { return alive_; }
  bool is_running() const { return alive_ && !paused_; }
  const std::string& name() const { return name_; }
  const std::string& key() const { return key_; }
  const ProcessSetup& setup() const { return setup_; }
  PeerAddress address() const { return {self_.control_endpoint, key_}; }
  PeerRow row() const;
  EngineMemory& memory() { return memory_; }
  Instant next_deadline() const { return protocol_->next_deadline(); }
  Snapshot snapshot(std::size_t max_rooms_shown = 100) const;
  std::uint64_t counter(const std::string& name) const;
  const wire::Introduction& self() const { return self_; }

  // --- a test's wishes ---
  // False: queries wait, since each of them is answered once (core/action.h).
  bool registry_answers = true;
  void let_registry_answer();
  std::optional<Failure> registry_failure;
  std::optional<Failure> data_session_refusal;
  std::optional<Failure> aux_verdict;  // unset: the real check of the record

  // ActionSink
  void publish_status(std::uint64_t owner, KvPoll status) override;
  bool publish_terminal(std::uint64_t owner, KvPoll status,
                        const std::optional<Failure>& failure) override;
  void publish_attempt(ReceiverId receiver, AttemptId attempt) override;
  void publish_prefix(SenderId sender, std::uint32_t decode_prefix_pages) override;
  void publish_landed_bytes(SenderId sender, std::uint64_t bytes) override;
  void release_pages(ReleasePages released) override;
  void resolve_prefill(ResolvePrefill query) override;
  void dial_peer(DialPeer dial) override;
  void hang_up(PeerId peer) override;
  void send_frame(SendFrame send) override;
  Status open_data_session(OpenDataSession open) override;
  void close_data_session(SessionEpoch epoch) override;
  void open_grant(OpenGrant open) override;
  void fence_grant(GrantId grant) override;
  void post_writes(PostWrites post) override;
  void give_up_writes(GiveUpWrites give_up) override;
  Status inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) override;
  void count(std::string_view counter, std::uint64_t by) override;
  void note(std::string_view text) override;
  // Environment
  std::uint64_t random_u64() override { return prng_.next(); }
  void fill_random(std::span<std::uint8_t> out) override { prng_.fill(out); }
  wire::Proof hmac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) override {
    return hmac_sha256(key, data);
  }

 private:
  std::vector<ResolvePrefill> unanswered_;
  void expect_closed(const Cell& cell, const char* when) const;

  World& world_;
  const std::string name_;
  const std::string key_;
  const ProcessSetup setup_;
  Prng prng_;
  wire::Introduction self_;
  EngineMemory memory_;
  std::unique_ptr<Protocol> protocol_;
  std::vector<Event> inbox_;
  bool alive_ = true;
  bool paused_ = false;
  std::uint64_t next_owner_ = 1;
  std::map<std::uint64_t, Cell> cells_;
  std::multiset<std::uint32_t> pages_out_;
  std::map<std::string, std::uint64_t> counters_;
};

}  // namespace kvferry::core::fake
