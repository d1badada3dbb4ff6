// Everything that the protocol orders, and the few questions it asks that are answered at once from
// local memory. Implemented by the runtime (real sockets and threads) and by the simulator. Methods
// are called on the protocol's thread during step() and must not call back into the protocol.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/peer_id.h"
#include "core/event.h"
#include "core/transition_table.h"
#include "kvferry/ids.h"
#include "kvferry/kv_poll.h"
#include "kvferry/status.h"
#include "layout/coverage.h"
#include "layout/write.h"
#include "wire/messages.h"

namespace kvferry::core {

struct ResolvePrefill {
  ReceiverId receiver;
  std::string bootstrap_address;
  std::string instance;
  std::uint32_t dp_rank = 0;
  RoomId room{};  // for registries that choose the replica by it
};

struct DialPeer {
  PeerId peer;
  PeerAddress address;
};

struct SendFrame {
  PeerId peer;
  wire::Frame frame;
  bool urgent = false;
};

// One writer's slot of a grant, at the target.
struct GrantedSlot {
  SessionEpoch session;
  GrantSlot slot;
  Generation generation;
  layout::GrantExtent extent;
};

struct OpenGrant {
  GrantId grant;
  std::vector<GrantedSlot> slots;
};

struct OpenDataSession {
  SessionEpoch epoch;
  Role local_role = Role::kPrefill;
  wire::Secret secret{};
  std::string transport;
  std::vector<std::uint8_t> peer_blob;
  std::vector<RegionShape> peer_regions;
};

struct PostWrites {
  SessionEpoch session;
  std::vector<layout::Write> writes;
};

struct GiveUpWrites {
  SessionEpoch session;
  GrantSlot slot;
  Generation generation;
};

// The caller may use these again. owner: ReceiverId or SenderId.
struct ReleasePages {
  std::uint64_t owner = 0;
  RoomId room;
  Binding binding;
  std::vector<PageIndex> pages;
  std::int64_t aux_slot = -1;
  std::vector<std::uint32_t> state_slots;
};

class ActionSink {
 public:
  virtual ~ActionSink() = default;

  // --- callers ---
  // owner: ReceiverId or SenderId; the two are drawn from one counter and never equal.
  virtual void publish_status(std::uint64_t owner, KvPoll status) = 0;
  // The one compare-and-swap that decides a room's end (rule 11). False: the caller ended it first,
  // and the core treats the room as failed. failure is set exactly when status is kFailed.
  virtual bool publish_terminal(std::uint64_t owner, KvPoll status,
                                const std::optional<Failure>& failure) = 0;
  virtual void publish_attempt(ReceiverId receiver, AttemptId attempt) = 0;
  // decode_prefix_pages of the sender's grants, once all are there.
  virtual void publish_prefix(SenderId sender, std::uint32_t decode_prefix_pages) = 0;
  virtual void publish_landed_bytes(SenderId sender, std::uint64_t bytes) = 0;
  virtual void release_pages(ReleasePages released) = 0;

  // --- bootstrap ---
  // Answered by one PrefillResolved, in time or as a failure, also when the room has ended
  // meanwhile.
  virtual void resolve_prefill(ResolvePrefill query) = 0;

  // --- control link ---
  virtual void dial_peer(DialPeer dial) = 0;
  virtual void hang_up(PeerId peer) = 0;
  // Best effort: a frame that can't be queued is lost, and the core repeats what was numbered.
  virtual void send_frame(SendFrame send) = 0;

  // --- transport ---
  // False with a reason: the session is refused.
  virtual Status open_data_session(OpenDataSession open) = 0;
  virtual void close_data_session(SessionEpoch epoch) = 0;
  virtual void open_grant(OpenGrant open) = 0;
  virtual void fence_grant(GrantId grant) = 0;
  virtual void post_writes(PostWrites post) = 0;
  virtual void give_up_writes(GiveUpWrites give_up) = 0;

  // --- local memory ---
  // Reads and checks an aux slot that is fenced.
  virtual Status inspect_aux(std::uint32_t aux_slot, RoomId room, Binding binding) = 0;

  // --- supervision ---
  // A room, a grant or a target left a state (numbers of the enums of transition_table.h). For
  // whoever traces; nothing depends on it.
  virtual void transitioned(Machine machine, std::uint8_t from, std::uint8_t trigger) {
    static_cast<void>(machine);
    static_cast<void>(from);
    static_cast<void>(trigger);
  }
  // A counter's name (docs/metrics.md) and by how much it rises.
  virtual void count(std::string_view counter, std::uint64_t by = 1) = 0;
  // One line for the log, limited in rate by the implementation.
  virtual void note(std::string_view text) = 0;
};

// What a protocol needs from the world beyond actions: randomness and a keyed hash, as pure calls.
class Environment {
 public:
  virtual ~Environment() = default;
  virtual std::uint64_t random_u64() = 0;
  virtual void fill_random(std::span<std::uint8_t> out) = 0;
  virtual wire::Proof hmac(std::span<const std::uint8_t> key,
                           std::span<const std::uint8_t> data) = 0;
};

}  // namespace kvferry::core
