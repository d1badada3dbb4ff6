// One process life: a protocol with its mailbox and its clock, and the status cells above it, as
// the runtime has them. It is the protocol's sink and environment; what it sees it reports to the
// oracle.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/crypto.h"
#include "base/prng.h"
#include "core/protocol.h"
#include "core/room_key.h"
#include "sim/memory.h"

namespace kvferry::sim {

class World;

// Where processes live, one after the other: an address, a rank of an engine, and its memory.
struct Place {
  std::uint32_t index = 0;
  Role role = Role::kPrefill;
  std::uint32_t engine = 0;  // prefill instance; 0 for decode
  std::string name;          // "p1.0" (instance, rank), "d2"
  std::string endpoint;
  std::string instance;  // as registered: "prefill1", "decode"
  std::unique_ptr<EngineMemory> memory;
  std::uint32_t life = 0;  // of the newest process
};

// What a caller holds of one room.
struct Cell {
  core::RoomKey key;
  KvPoll status = KvPoll::kBootstrapping;
  std::optional<Failure> failure;
  Instant ended;           // when the status became terminal
  bool by_caller = false;  // the caller's abort or clear won the cell
  AttemptId attempt;
  std::optional<std::uint32_t> prefix;  // prefill: once all grants are there
  bool cleared = false;
  bool read_success = false;  // decode: the caller has read it and owns the pages
};

class Node final : public core::ActionSink, public core::Environment {
 public:
  Node(World& world, Place& place, EngineEpoch engine_epoch);
  ~Node() override;

  // --- the caller's side; an owner is a ReceiverId's or SenderId's value. Each call leaves an
  // event in the mailbox, as the public API does. ---
  std::uint64_t open(const core::RoomKey& key);
  void name_prefill(std::uint64_t receiver, const std::string& instance);
  void give(std::uint64_t receiver, core::MetadataGiven metadata);
  void init_sender(std::uint64_t sender, std::uint32_t page_count, std::int64_t aux_slot);
  void send(std::uint64_t sender, std::vector<PageIndex> pages,
            std::vector<std::uint32_t> state_slots);
  // Whoever wins the cell decides (rule 11); without effect after the end.
  void abort(std::uint64_t owner, FailureCode code = FailureCode::kAborted);
  KvPoll poll(std::uint64_t owner);
  void clear(std::uint64_t owner);
  const Cell& cell(std::uint64_t owner) const { return cells_.at(owner); }
  const std::map<std::uint64_t, Cell>& cells() const { return cells_; }

  // --- the world's side ---
  void receive(core::Event event);
  void receive_after(Duration delay, core::Event event);
  void die();  // nothing of it happens any more
  void stop(const Failure& cause);
  void pause();
  void resume();
  bool is_alive() const { return alive_; }
  bool is_running() const { return alive_ && !paused_; }
  bool is_stopped() const { return stopped_; }

  Place& place() const { return place_; }
  EngineMemory& memory() const { return *place_.memory; }
  std::uint32_t life() const { return life_; }
  const std::string& key() const { return key_; }    // empty in plain mode
  const std::string& name() const { return name_; }  // "p1.0#2"
  const wire::Introduction& self() const { return self_; }
  EngineEpoch engine_epoch() const { return self_.engine_epoch; }
  PeerAddress address() const { return {place_.endpoint, key_}; }
  core::PeerRow row() const;
  core::Snapshot snapshot() const;
  core::Snapshot brief() const;  // without the rooms, which cost the most
  std::uint64_t counter(std::string_view name) const;
  // A long pause is just over and what came meanwhile has not reached the mailbox yet: no deadline
  // may be believed (rule 13).
  bool has_unread_after_pause() const { return paused_long_ && !door_.empty(); }
  bool holds_session(SessionEpoch epoch) const;  // live, not suspended

  // ActionSink
  void publish_status(std::uint64_t owner, KvPoll status) override;
  bool publish_terminal(std::uint64_t owner, KvPoll status,
                        const std::optional<Failure>& failure) override;
  void publish_attempt(core::ReceiverId receiver, AttemptId attempt) override;
  void publish_prefix(SenderId sender, std::uint32_t decode_prefix_pages) override;
  void publish_landed_bytes(SenderId sender, std::uint64_t bytes) override;
  void release_pages(core::ReleasePages released) override;
  void resolve_prefill(core::ResolvePrefill query) override;
  void dial_peer(core::DialPeer dial) override;
  void hang_up(PeerId peer) override;
  void send_frame(core::SendFrame send) override;
  Status open_data_session(core::OpenDataSession open) override;
  void close_data_session(SessionEpoch epoch) override;
  void open_grant(core::OpenGrant open) override;
  void fence_grant(GrantId grant) override;
  void post_writes(core::PostWrites post) override;
  void give_up_writes(core::GiveUpWrites give_up) override;
  Status inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) override;
  void transitioned(core::Machine machine, std::uint8_t from, std::uint8_t trigger) override;
  void count(std::string_view counter, std::uint64_t by) override;
  void note(std::string_view text) override;
  // Environment
  std::uint64_t random_u64() override { return prng_.next(); }
  void fill_random(std::span<std::uint8_t> out) override { prng_.fill(out); }
  wire::Proof hmac(std::span<const std::uint8_t> key, std::span<const std::uint8_t> data) override {
    return hmac_sha256(key, data);
  }

 private:
  // The process's own monotonic clock: skewed against the world's.
  Instant local_now() const;
  Instant to_world(Instant local) const;
  void plan_turn(Duration delay);
  void plan_timer();
  void turn();
  bool is_quarantine_full() const;
  void end_by_caller(Cell& cell, FailureCode code, std::string_view what);

  World& world_;
  Place& place_;
  const std::uint32_t life_;
  const std::string name_;
  const std::string key_;
  Prng prng_;    // the protocol's randomness
  Prng timing_;  // turns and timers
  Duration skew_{};
  std::int64_t drift_per_mille_ = 0;
  wire::Introduction self_;
  std::unique_ptr<core::Protocol> protocol_;
  std::vector<core::Event> inbox_;
  std::vector<core::Event> door_;   // what comes while the process is paused
  std::vector<SessionEpoch> over_;  // sessions that ended in this turn
  Instant paused_since_;
  bool paused_long_ = false;
  Instant last_turn_ = Instant::max();  // by its own clock
  bool timers_wait_ = false;            // for the next turn, since the last one came late
  bool alive_ = true;
  bool paused_ = false;
  bool stopped_ = false;
  bool turn_planned_ = false;
  Instant timer_planned_ = Instant::max();
  std::uint64_t next_owner_ = 1;
  std::map<std::uint64_t, Cell> cells_;
  std::map<std::string, std::uint64_t, std::less<>> counters_;
};

}  // namespace kvferry::sim
