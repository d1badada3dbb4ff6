// Peers and sessions of one process: dialling, the hello, numbering, acknowledgement, repetition,
// heartbeats, the grace for lost connections, and the end. Knows nothing of rooms: what concerns
// them comes out of take_outputs(), in order.
//
// Methods are of four kinds: getters; handle_*() for what came in; commands; and the outputs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/action.h"
#include "core/protocol.h"
#include "core/session.h"
#include "core/timer_queue.h"

namespace kvferry::core {

struct SessionStarted {
  SessionEpoch epoch;
  PeerId peer;
};
struct SessionOver {
  SessionEpoch epoch;
  PeerId peer;
  Failure cause;
};
struct MessageDelivered {
  SessionEpoch epoch;
  wire::Message message;
};
// Nothing that was sent for this owner in this session is unacknowledged any more.
struct OwnerSettled {
  SessionEpoch epoch;
  OwnerId owner;
};
// A peer that rooms may wait for will not become usable.
struct PeerRefused {
  PeerId peer;
  Failure cause;
};
using SessionOutput =
    std::variant<SessionStarted, SessionOver, MessageDelivered, OwnerSettled, PeerRefused>;

class SessionTable {
 public:
  SessionTable(const ProtocolConfig& config, Environment& environment);

  // --- getters ---
  const Session* find(SessionEpoch epoch) const;    // live ones only
  const Session* live_session_of(PeerId id) const;  // nullptr when there is none
  const Session* live_session_at(const PeerAddress& address) const;
  const Peer* peer(PeerId id) const;
  const Peer* peer_of(SessionEpoch epoch) const;
  bool has_unsettled(SessionEpoch epoch, OwnerId owner) const;
  Instant next_deadline() const { return timers_.next(); }
  std::vector<PeerView> view(Instant now) const;

  // --- what came in ---
  void handle_link_up(PeerId id, Instant now, ActionSink& sink);
  void handle_link_down(const LinkDown& event, Instant now, ActionSink& sink);
  void handle_frame(FrameArrived& event, Instant now, ActionSink& sink);
  void handle_path_tested(const PathTested& event, ActionSink& sink);
  void handle_lane_failed(const LaneFailed& event, Instant now, ActionSink& sink);
  void handle_timers(Instant now, ActionSink& sink);

  // --- commands ---
  // Decode: a peer that this side says hello to; dials it when it is new. nullopt: max_peers
  // reached.
  std::optional<PeerId> want_peer(const PeerAddress& address, Instant now, ActionSink& sink);
  void add_interest(PeerId id, Instant now);
  void drop_interest(PeerId id, Instant now, ActionSink& sink);
  // The set that keep_paired wants; others lose that mark.
  void set_paired(const std::vector<PeerAddress>& addresses, Instant now, ActionSink& sink);
  // Queues a message; it leaves with flush(). Ignored when the session is gone. owner: told by
  // OwnerSettled once the peer has acknowledged all of its messages; 0: nobody.
  void send(SessionEpoch epoch, wire::Message message, Urgency urgency, OwnerId owner, Instant now,
            ActionSink& sink);
  // Outbox::withdraw in that session.
  template <typename Kind>
  void withdraw(SessionEpoch epoch, OwnerId owner) {
    if (Peer* peer = find_by_epoch(epoch)) {
      peer->session->outbox.withdraw<Kind>(owner);
    }
  }
  // Unnumbered, sent once (Stale, Unsupported).
  void send_once(SessionEpoch epoch, wire::Message message, ActionSink& sink, Instant now);
  void end_all(const Failure& cause, Instant now, ActionSink& sink);
  // Sends what is queued and owed; at the end of every step.
  void flush(Instant now, ActionSink& sink);

  std::vector<SessionOutput> take_outputs();

 private:
  enum class TimerKind : std::uint8_t {
    kRedial,     // say hello on a new connection
    kHello,      // repeat our last word of a hello or of a resumption
    kHandshake,  // prefill: forget a hello that was not confirmed
    kGrace,      // a suspended session ends; prefill: a peer without a session is let go
    kHeartbeat,
    kRepeat  // unacknowledged messages
  };
  struct TimerKey {
    TimerKind kind{};
    PeerId peer;
    friend bool operator==(const TimerKey&, const TimerKey&) = default;
  };
  struct TimerKeyHash {
    std::size_t operator()(const TimerKey& key) const noexcept {
      return std::hash<PeerId>{}(key.peer) * 8 + static_cast<std::size_t>(key.kind);
    }
  };

  // session_handshake.cc
  void start_hello(Peer& peer, Instant now, ActionSink& sink);
  void handle_hello(const std::string& sender_key, const wire::Hello& hello, Instant now,
                    ActionSink& sink);
  void handle_hello_reply(Peer& peer, const wire::HelloReply& reply, Instant now, ActionSink& sink);
  void handle_hello_confirm(Peer& peer, const wire::HelloConfirm& confirm, Instant now,
                            ActionSink& sink);
  void handle_hello_confirmed(Peer& peer, SessionEpoch epoch, Instant now, ActionSink& sink);
  void handle_hello_refused(Peer& peer, const wire::HelloRefused& refused, Instant now,
                            ActionSink& sink);
  void handle_resume(Peer& peer, const wire::Resume& resume, Instant now, ActionSink& sink);
  void handle_resumed(Peer& peer, const wire::Resumed& resumed, Instant now, ActionSink& sink);
  void handle_handshake_message(const std::string& sender_key, const wire::Message& message,
                                Instant now, ActionSink& sink);
  std::optional<Failure> refuse_introduction(const wire::Introduction& peer,
                                             ActionSink& sink) const;
  wire::Secret session_secret(const Handshake& handshake) const;
  wire::Proof resume_proof(const Session& session, bool answer, const wire::Nonce& nonce) const;
  std::string choose_transport(const wire::Introduction& peer) const;
  bool make_session(Peer& peer, const wire::Introduction& peer_self, const std::string& transport,
                    Instant now, ActionSink& sink);
  Status open_data(const Session& session, const std::string& transport, ActionSink& sink) const;
  void go_live(Peer& peer, Instant now);
  bool revive(Peer& peer, SessionEpoch epoch, Instant now, ActionSink& sink);
  void say(Peer& peer, wire::Message message, ActionSink& sink);
  void fail_hello(Peer& peer, const Failure& cause, bool for_good, Instant now, ActionSink& sink);

  // session_table.cc
  void show_readiness(const Session& session, PeerView& view) const;
  Peer* find_peer(PeerId id);
  Peer* find_by_identity(const std::string& identity);
  Peer* find_by_key(const std::string& sender_key);
  Peer* find_by_epoch(SessionEpoch epoch);
  // Who speaks in a session that is not here, or not any more; nullptr when nobody knows.
  Peer* find_speaker(const std::string& sender_key, SessionEpoch epoch);
  Peer* add_peer(const PeerAddress& address, bool initiates);
  std::string identity_of(const PeerAddress& address) const;
  void dial(Peer& peer, Instant now, ActionSink& sink);
  void connection_lost(Peer& peer, Instant now, ActionSink& sink);
  void hurry_redial(Peer& peer, Instant now);
  void schedule_redial(Peer& peer, Instant now, ActionSink& sink);
  void let_go_if_unwanted(PeerId id, Instant now, ActionSink& sink);
  void end(Peer& peer, const Failure& cause, bool tell_peer, Instant now, ActionSink& sink);
  void resume(Peer& peer, Instant now, ActionSink& sink);
  void heartbeat(Peer& peer, Instant now, ActionSink& sink);
  void handle_timer(const TimerKey& key, Instant now, ActionSink& sink);

  // session_frames.cc
  void handle_session_frame(Peer& peer, wire::Frame& frame, Instant now, ActionSink& sink);
  void acknowledged(Session& session, std::uint64_t through, Instant now, ActionSink& sink);
  void flush_peer(Peer& peer, Instant now, ActionSink& sink);
  void transmit(Peer& peer, wire::Frame frame, bool urgent, Instant now, ActionSink& sink);

  const ProtocolConfig& config_;
  const Options& options_;
  const Guards guards_;
  Environment& environment_;
  std::map<PeerId, std::unique_ptr<Peer>> peers_;
  std::unordered_map<std::string, PeerId> by_identity_;
  std::unordered_map<SessionEpoch, PeerId> by_epoch_;
  std::set<PeerId> dirty_;  // have something to flush
  TimerQueue<TimerKey, TimerKeyHash> timers_;
  PeerId next_peer_{1};
  std::vector<SessionOutput> outputs_;
};

}  // namespace kvferry::core
