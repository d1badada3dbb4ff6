#include "core/session_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvferry::core {
namespace {

constexpr std::uint32_t kWrongKeysToGiveUp = 3;

std::int64_t to_ms(Duration duration) {
  return std::chrono::duration_cast<milliseconds>(duration).count();
}

}  // namespace

SessionTable::SessionTable(const ProtocolConfig& config, Environment& environment)
    : config_(config),
      options_(config.options),
      guards_(config.guards),
      environment_(environment),
      timers_(config.guards) {}

// --- getters ---

const Session* SessionTable::find(SessionEpoch epoch) const {
  const Peer* owner = peer_of(epoch);
  return owner != nullptr && owner->session->live ? owner->session.get() : nullptr;
}

const Session* SessionTable::live_session_of(PeerId id) const {
  const Peer* found = peer(id);
  const bool live = found != nullptr && found->session != nullptr && found->session->live;
  return live ? found->session.get() : nullptr;
}

const Session* SessionTable::live_session_at(const PeerAddress& address) const {
  const auto found = by_identity_.find(identity_of(address));
  return found == by_identity_.end() ? nullptr : live_session_of(found->second);
}

const Peer* SessionTable::peer(PeerId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

const Peer* SessionTable::peer_of(SessionEpoch epoch) const {
  const auto found = by_epoch_.find(epoch);
  return found == by_epoch_.end() ? nullptr : peer(found->second);
}

bool SessionTable::has_unsettled(SessionEpoch epoch, OwnerId owner) const {
  const Session* session = find(epoch);
  return session != nullptr && session->outbox.has_unsettled(owner);
}

std::vector<PeerView> SessionTable::view(Instant now) const {
  std::vector<PeerView> views;
  views.reserve(peers_.size());
  for (const auto& [id, peer] : peers_) {
    PeerView view;
    view.endpoint = peer->address.endpoint;
    view.reason = to_string(peer->last_cause);
    view.flaps = peer->flaps;
    view.last_heard_ms = peer->ever_heard ? to_ms(now - peer->last_heard) : -1;
    view.state = peer->unusable ? "refused" : peer->link_up ? "greeting" : "dialling";
    if (peer->session != nullptr) {
      const Session& session = *peer->session;
      view.instance = session.peer_self.instance;
      view.epoch = session.epoch;
      view.queued_messages = session.outbox.waiting();
      view.unacknowledged = session.outbox.unacknowledged();
      if (session.live) {
        show_readiness(session, view);
      }
    }
    if (view.ready) {
      view.reason.clear();
    }
    views.push_back(std::move(view));
  }
  return views;
}

// Of a live session. A pair whose data path has not been seen to work is no pair to send rooms to.
void SessionTable::show_readiness(const Session& session, PeerView& view) const {
  if (session.suspended_since) {
    view.state = "suspended";
  } else if (!config_.transport_class.tests_path) {
    view.state = "live";
    view.ready = true;
  } else if (!session.path_test) {
    view.state = "testing";
    view.reason = "its data path is being tested";
  } else {
    view.state = "live";
    view.ready = session.path_test->has_value();
    if (!view.ready) {
      view.reason = to_string(session.path_test->error());
    }
  }
}

Peer* SessionTable::find_peer(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

Peer* SessionTable::find_by_identity(const std::string& identity) {
  const auto found = by_identity_.find(identity);
  return found == by_identity_.end() ? nullptr : find_peer(found->second);
}

Peer* SessionTable::find_by_key(const std::string& sender_key) {
  if (guards_.has(Guard::kPeerIncarnation)) {
    return find_by_identity(sender_key);
  }
  const auto found = std::ranges::find_if(
      peers_, [&](const auto& entry) { return entry.second->address.public_key == sender_key; });
  return found == peers_.end() ? nullptr : found->second.get();
}

// Without keys a peer is known by the last session that ended with it.
Peer* SessionTable::find_speaker(const std::string& sender_key, SessionEpoch epoch) {
  if (!sender_key.empty()) {
    return find_by_key(sender_key);
  }
  for (auto& [id, peer] : peers_) {
    if (peer->ended == epoch) {
      return peer.get();
    }
  }
  return nullptr;
}

Peer* SessionTable::find_by_epoch(SessionEpoch epoch) {
  const auto found = by_epoch_.find(epoch);
  return found == by_epoch_.end() ? nullptr : find_peer(found->second);
}

// With CURVE a key is one process life. In plain mode (loopback) the endpoint has to do.
std::string SessionTable::identity_of(const PeerAddress& address) const {
  const bool by_key = !address.public_key.empty() && guards_.has(Guard::kPeerIncarnation);
  return by_key ? address.public_key : "plain:" + address.endpoint;
}

// --- commands ---

Peer* SessionTable::add_peer(const PeerAddress& address, bool initiates) {
  if (peers_.size() >= options_.max_peers) {
    return nullptr;
  }
  const PeerId id = next_peer_;
  next_peer_ = next_peer_.next();
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->address = address;
  peer->initiates = initiates;
  peer->last_cause.peer = address.endpoint;
  by_identity_[identity_of(address)] = id;
  return peers_.emplace(id, std::move(peer)).first->second.get();
}

std::optional<PeerId> SessionTable::want_peer(const PeerAddress& address, Instant now,
                                              ActionSink& sink) {
  Peer* peer = find_by_identity(identity_of(address));
  if (peer == nullptr) {
    peer = add_peer(address, true);
    if (peer == nullptr) {
      return std::nullopt;
    }
    dial(*peer, now, sink);
  }
  return peer->id;
}

void SessionTable::add_interest(PeerId id, Instant now) {
  Peer* peer = find_peer(id);
  if (peer == nullptr) {
    return;
  }
  // Somebody waits for it from here on: the pace of one that nobody wanted is too slow.
  if (++peer->interested_rooms == 1 && timers_.is_set({TimerKind::kRedial, id})) {
    hurry_redial(*peer, now);
  }
}

void SessionTable::hurry_redial(Peer& peer, Instant now) {
  peer.redial_after = milliseconds(options_.redial_min_ms);
  timers_.set({TimerKind::kRedial, peer.id}, now + peer.redial_after);
}

void SessionTable::drop_interest(PeerId id, Instant now, ActionSink& sink) {
  if (Peer* peer = find_peer(id); peer != nullptr && peer->interested_rooms > 0) {
    --peer->interested_rooms;
    let_go_if_unwanted(id, now, sink);
  }
}

void SessionTable::set_paired(const std::vector<PeerAddress>& addresses, Instant now,
                              ActionSink& sink) {
  std::set<PeerId> wanted;
  for (const PeerAddress& address : addresses) {
    if (const auto id = want_peer(address, now, sink)) {
      wanted.insert(*id);
    }
  }
  std::vector<PeerId> unwanted;
  for (auto& [id, peer] : peers_) {
    peer->paired = wanted.contains(id);
    if (!peer->paired) {
      unwanted.push_back(id);
    }
  }
  for (const PeerId id : unwanted) {
    let_go_if_unwanted(id, now, sink);
  }
}

void SessionTable::let_go_if_unwanted(PeerId id, Instant, ActionSink& sink) {
  const Peer* peer = find_peer(id);
  // Where the address is the identity, its entry is kept for good.
  if (peer == nullptr || !guards_.has(Guard::kPeerIncarnation) || peer->paired ||
      peer->interested_rooms > 0 || peer->session != nullptr ||
      (!peer->initiates && peer->handshake != nullptr)) {
    return;
  }
  for (const TimerKind kind : {TimerKind::kRedial, TimerKind::kHello, TimerKind::kHandshake,
                               TimerKind::kGrace, TimerKind::kHeartbeat, TimerKind::kRepeat}) {
    timers_.cancel({kind, id});
  }
  dirty_.erase(id);
  if (const auto found = by_identity_.find(identity_of(peer->address));
      found != by_identity_.end() && found->second == id) {
    by_identity_.erase(found);
  }
  sink.hang_up(id);
  peers_.erase(id);
}

void SessionTable::send(SessionEpoch epoch, wire::Message message, Urgency urgency, OwnerId owner,
                        Instant now, ActionSink& sink) {
  Peer* peer = find_by_epoch(epoch);
  if (peer == nullptr || !peer->session->live) {
    return;
  }
  if (!peer->session->outbox.push(std::move(message), urgency, owner)) {
    // Losing one message would break what the rooms rely on, so the session goes, with the reason.
    sink.count("message_queue_full");
    end(*peer,
        Failure{FailureCode::kQueueFull, FailureWhere::kLocal,
                fmt::format("{} control messages wait for {} (max_queued_messages)",
                            options_.max_queued_messages, peer->address.endpoint),
                peer->address.endpoint, -1},
        true, now, sink);
    return;
  }
  dirty_.insert(peer->id);
}

void SessionTable::send_once(SessionEpoch epoch, wire::Message message, ActionSink& sink,
                             Instant now) {
  Peer* peer = find_by_epoch(epoch);
  if (peer != nullptr && peer->session->live) {
    wire::Frame frame;
    frame.messages.push_back(std::move(message));
    transmit(*peer, std::move(frame), true, now, sink);
  }
}

void SessionTable::end_all(const Failure& cause, Instant now, ActionSink& sink) {
  for (auto& [id, peer] : peers_) {
    peer->paired = false;
    if (peer->session != nullptr) {
      end(*peer, cause, true, now, sink);
    }
  }
}

std::vector<SessionOutput> SessionTable::take_outputs() { return std::exchange(outputs_, {}); }

// --- connections ---

void SessionTable::dial(Peer& peer, Instant, ActionSink& sink) {
  peer.link_dialled = true;
  peer.link_up = false;
  sink.dial_peer(DialPeer{peer.id, peer.address});
}

void SessionTable::schedule_redial(Peer& peer, Instant now, ActionSink& sink) {
  if (peer.unusable) {
    if (!peer.paired) {
      return;
    }
    // Wanted all the same: at the slowest pace, in case it was something between the two.
    peer.redial_after = milliseconds(options_.redial_max_ms);
  }
  if (peer.redial_after == Duration{}) {
    // The first redial is immediate: most lost connections come back at once.
    peer.redial_after = milliseconds(options_.redial_min_ms);
    dial(peer, now, sink);
    return;
  }
  const auto after = static_cast<std::uint64_t>(peer.redial_after.count());
  // Between half and the whole, so that many peers don't redial in step.
  const Duration jittered{
      static_cast<Duration::rep>(after / 2 + environment_.random_u64() % (after / 2 + 1))};
  timers_.set({TimerKind::kRedial, peer.id}, now + jittered);
  peer.redial_after =
      std::min<Duration>(peer.redial_after * 2, milliseconds(options_.redial_max_ms));
}

void SessionTable::handle_link_up(PeerId id, Instant now, ActionSink& sink) {
  Peer* peer = find_peer(id);
  if (peer == nullptr) {
    sink.hang_up(id);
    return;
  }
  peer->link_up = true;
  peer->wrong_keys = 0;
  peer->unusable = false;
  if (peer->session != nullptr && peer->session->live) {
    // One nonce per connection: an answer slower than the repetition counts, too.
    environment_.fill_random(peer->session->resume_nonce);
    resume(*peer, now, sink);
  } else if (peer->initiates) {
    start_hello(*peer, now, sink);
  } else if (peer->handshake != nullptr) {
    say(*peer, peer->handshake->repeat, sink);
  }
}

void SessionTable::handle_link_down(const LinkDown& event, Instant now, ActionSink& sink) {
  Peer* peer = find_peer(event.peer);
  if (peer == nullptr) {
    return;
  }
  peer->link_up = false;
  timers_.cancel({TimerKind::kHello, peer->id});
  if (peer->initiates && peer->session == nullptr) {
    // A hello ends with its connection. An answer that still comes would open a session that
    // nobody confirms, and the next connection would not greet again.
    peer->handshake.reset();
  }
  const bool restarted = event.why == LinkDown::Why::kWrongKey;
  if (event.why == LinkDown::Why::kClosed || event.why == LinkDown::Why::kDenied ||
      (restarted && !guards_.has(Guard::kPeerIncarnation))) {
    const bool denied = event.why == LinkDown::Why::kDenied;
    peer->last_cause = Failure{denied ? FailureCode::kUnauthorized : FailureCode::kPeerLost,
                               denied ? FailureWhere::kPeer : FailureWhere::kPath,
                               denied ? "the peer does not allow this process's key (yet)"
                                      : "the control connection was lost",
                               peer->address.endpoint, -1};
    connection_lost(*peer, now, sink);
    return;
  }
  peer->wrong_keys = restarted ? peer->wrong_keys + 1 : 0;
  Failure cause{restarted ? FailureCode::kPeerRestarted : FailureCode::kPeerLost,
                FailureWhere::kPeer,
                restarted ? "another process answers at the peer's address"
                          : "the peer's address refuses connections",
                peer->address.endpoint, -1};
  peer->last_cause = cause;
  // A handshake that is cut off in the middle looks as if another process had answered. So the
  // first time is no evidence, and the next try comes at once; the second one ends the session.
  // After the third there is no redial, and what waits for this peer fails.
  peer->unusable = peer->wrong_keys >= kWrongKeysToGiveUp;
  if (restarted && peer->wrong_keys == 1) {
    peer->redial_after = {};
    connection_lost(*peer, now, sink);
    return;
  }
  if (restarted && !peer->unusable) {
    peer->redial_after = milliseconds(options_.redial_min_ms);
  }
  if (peer->session != nullptr) {
    end(*peer, cause, false, now, sink);
    return;
  }
  if (peer->unusable) {
    outputs_.emplace_back(PeerRefused{peer->id, cause});
  }
  schedule_redial(*peer, now, sink);
}

// Without evidence that the peer is gone: a live session waits for the next connection (rule 7).
void SessionTable::connection_lost(Peer& peer, Instant now, ActionSink& sink) {
  if (peer.session != nullptr && peer.session->live) {
    if (!peer.session->suspended_since) {
      peer.session->suspended_since = now;
      timers_.set({TimerKind::kGrace, peer.id}, now + milliseconds(options_.session_grace_ms));
    }
    sink.count("connections_lost");
  } else if (peer.session != nullptr) {
    end(peer, peer.last_cause, false, now, sink);
    return;
  }
  schedule_redial(peer, now, sink);
}

void SessionTable::resume(Peer& peer, Instant now, ActionSink& sink) {
  const Session& session = *peer.session;
  say(peer,
      wire::Resume{session.epoch, session.resume_nonce,
                   resume_proof(session, false, session.resume_nonce)},
      sink);
  timers_.set({TimerKind::kHello, peer.id}, now + milliseconds(options_.retransmit_min_ms));
}

void SessionTable::end(Peer& peer, const Failure& cause, bool tell_peer, Instant now,
                       ActionSink& sink) {
  const SessionEpoch epoch = peer.session->epoch;
  const bool was_live = peer.session->live;
  // Prefill: a hello for the next session may be under way; it came by another connection than what
  // ended this one, so the order of the two says nothing.
  const bool next_hello = was_live && !peer.initiates && peer.handshake != nullptr;
  if (tell_peer && peer.link_up) {
    say(peer, wire::SessionEnded{epoch, cause}, sink);
  }
  by_epoch_.erase(epoch);
  if (!guards_.has(Guard::kEndedNotResumed) || !guards_.has(Guard::kResumeNeedsState)) {
    peer.former = std::move(peer.session);
  }
  peer.session.reset();
  peer.ended = epoch;
  peer.last_cause = cause;
  dirty_.erase(peer.id);
  for (const TimerKind kind :
       {TimerKind::kHello, TimerKind::kGrace, TimerKind::kHeartbeat, TimerKind::kRepeat}) {
    timers_.cancel({kind, peer.id});
  }
  if (!next_hello) {
    peer.handshake.reset();
    timers_.cancel({TimerKind::kHandshake, peer.id});
  }
  sink.close_data_session(epoch);
  if (was_live) {
    sink.count("sessions_ended");
    ++peer.flaps;
    outputs_.emplace_back(SessionOver{epoch, peer.id, cause});
  }
  if (peer.unusable) {
    outputs_.emplace_back(PeerRefused{peer.id, cause});
  }
  // A new connection for a new session: nothing that was said in the old one can arrive in it.
  peer.link_up = false;
  if (peer.initiates) {
    if (peer.redial_after == Duration{}) {
      peer.redial_after = milliseconds(options_.redial_min_ms);
    }
    schedule_redial(peer, now, sink);
  } else if (!peer.initiates) {
    // Kept for a moment, so that SessionEnded leaves; a hello from the same process revives it.
    timers_.set({TimerKind::kGrace, peer.id}, now + milliseconds(options_.session_grace_ms));
    if (next_hello) {
      dial(peer, now, sink);
    }
  }
}

void SessionTable::handle_path_tested(const PathTested& event, ActionSink& sink) {
  sink.count(event.result ? "path_tests_passed" : "path_tests_failed");
  Peer* peer = find_by_epoch(event.session);
  if (peer == nullptr) {
    return;
  }
  if (!event.result) {
    sink.note(fmt::format("peer {}: {}", peer->address.endpoint, event.result.error().what));
  }
  peer->session->path_test = event.result;
}

void SessionTable::handle_lane_failed(const LaneFailed& event, Instant now, ActionSink& sink) {
  Peer* peer = find_by_epoch(event.session);
  if (peer == nullptr || !peer->session->live) {
    return;
  }
  auto& failures = peer->session->lane_failures;
  const Duration within = milliseconds(options_.session_grace_ms);
  while (!failures.empty() && now - failures.front() > within) {
    failures.pop_front();
  }
  failures.push_back(now);
  sink.count("lane_failures");
  sink.note(
      fmt::format("a data lane with {} failed: {}", peer->address.endpoint, event.cause.what));
  if (event.all_lanes) {
    Failure cause = event.cause;
    cause.peer = peer->address.endpoint;
    end(*peer, cause, true, now, sink);
  } else if (failures.size() >= options_.lane_failure_limit) {
    Failure cause = event.cause;
    cause.what = fmt::format("{} data lanes failed within {} ms; the last: {}", failures.size(),
                             options_.session_grace_ms, event.cause.what);
    cause.peer = peer->address.endpoint;
    end(*peer, cause, true, now, sink);
  }
}

// --- time ---

void SessionTable::handle_timers(Instant now, ActionSink& sink) {
  while (const auto key = timers_.pop_due(now)) {
    handle_timer(*key, now, sink);
  }
}

void SessionTable::handle_timer(const TimerKey& key, Instant now, ActionSink& sink) {
  Peer* peer = find_peer(key.peer);
  if (peer == nullptr) {
    return;
  }
  switch (key.kind) {
    case TimerKind::kRedial:
      if (peer->paired || peer->interested_rooms > 0 || peer->session != nullptr ||
          peer->handshake != nullptr || !guards_.has(Guard::kPeerIncarnation)) {
        dial(*peer, now, sink);
      } else {
        let_go_if_unwanted(peer->id, now, sink);
      }
      return;
    case TimerKind::kHandshake:
      peer->handshake.reset();
      let_go_if_unwanted(peer->id, now, sink);
      return;
    case TimerKind::kHello:
      if (peer->session != nullptr && peer->session->live) {
        if (peer->session->suspended_since && peer->link_up) {
          resume(*peer, now, sink);
        }
      } else if (peer->handshake != nullptr) {
        if (now >= peer->handshake->gives_up_at) {
          fail_hello(
              *peer,
              Failure{FailureCode::kPeerUnreachable, FailureWhere::kPeer,
                      fmt::format("no answer to the hello within {} ms", options_.hello_timeout_ms),
                      peer->address.endpoint, -1},
              false, now, sink);
        } else {
          say(*peer, peer->handshake->repeat, sink);
          timers_.set(key, now + milliseconds(options_.retransmit_min_ms));
        }
      }
      return;
    case TimerKind::kGrace:
      if (peer->session != nullptr && peer->session->suspended_since) {
        end(*peer,
            Failure{FailureCode::kPeerLost, FailureWhere::kPath,
                    fmt::format("the control connection was lost and did not come back within "
                                "{} ms (session_grace_ms)",
                                options_.session_grace_ms),
                    peer->address.endpoint, -1},
            false, now, sink);
      } else if (peer->session == nullptr && !peer->initiates && peer->handshake == nullptr) {
        // A hello that came meanwhile has a deadline of its own.
        let_go_if_unwanted(peer->id, now, sink);
      }
      return;
    case TimerKind::kHeartbeat:
      heartbeat(*peer, now, sink);
      return;
    case TimerKind::kRepeat:
      if (peer->session != nullptr && peer->session->outbox.repeat_at() <= now) {
        sink.count("retransmissions");
        peer->session->outbox.rewind();
        peer->session->outbox.note_repeated(now);
      }
      dirty_.insert(peer->id);
      return;
  }
}

void SessionTable::heartbeat(Peer& peer, Instant now, ActionSink& sink) {
  if (peer.session == nullptr || !peer.session->live) {
    return;
  }
  Session& session = *peer.session;
  const Duration silence = now - session.last_heard;
  if (silence >= milliseconds(options_.heartbeat_timeout_ms)) {
    end(peer,
        Failure{FailureCode::kPeerLost, FailureWhere::kPeer,
                fmt::format("nothing heard for {} ms (heartbeat_timeout_ms {})", to_ms(silence),
                            options_.heartbeat_timeout_ms),
                peer.address.endpoint, -1},
        true, now, sink);
    return;
  }
  const Duration interval = milliseconds(options_.heartbeat_interval_ms);
  if (now - session.last_sent >= interval) {
    wire::Frame frame;
    frame.messages.emplace_back(wire::Heartbeat{});
    transmit(peer, std::move(frame), true, now, sink);
  }
  timers_.set({TimerKind::kHeartbeat, peer.id}, now + interval);
}

}  // namespace kvferry::core
