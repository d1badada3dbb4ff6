// Carries out what the protocol orders: cells, frames, transport calls, questions to the
// registries. Lives on the driver's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "core/action.h"
#include "data_plane/transport.h"
#include "net/control_link.h"
#include "runtime/aux_slots.h"
#include "runtime/prefill_resolver.h"
#include "runtime/release_queue.h"
#include "runtime/status_cell.h"

namespace kvferry::runtime {

using Counters = std::map<std::string, std::uint64_t, std::less<>>;

class DriverSink final : public core::ActionSink {
 public:
  struct Parts {
    StatusTable& table;
    ReleaseQueue& releases;
    PrefillResolver& resolver;
    net::ControlLink& link;
    data_plane::Transport& transport;
    AuxSlots& aux;
  };
  explicit DriverSink(Parts parts) : parts_(parts) {}

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
  void count(std::string_view counter, std::uint64_t by) override;
  void note(std::string_view text) override;

  // --- the driver ---
  // Events that an action caused at once, for the next turn: a step must not call back.
  std::vector<core::Event>& caused() { return caused_; }
  // Whether the caller has something new to look at since the last call; it finds it listed.
  bool take_news();
  std::uint64_t frames_sent() const { return frames_sent_; }
  const Counters& counters() const { return counters_; }
  // The connection with the peer is over: what the registries say of its address is doubtful.
  void doubt(PeerId peer);

 private:
  void note_changed(std::uint64_t owner);

  Parts parts_;
  std::vector<core::Event> caused_;
  Counters counters_;
  bool news_ = false;
  std::vector<std::uint64_t> changed_;  // handles with a new status, in this turn
  std::uint64_t frames_sent_ = 0;
  std::unordered_map<PeerId, std::string> dialled_;  // endpoints
  Instant note_window_{};
  std::uint32_t notes_in_window_ = 0;
  std::uint64_t notes_suppressed_ = 0;
};

}  // namespace kvferry::runtime
