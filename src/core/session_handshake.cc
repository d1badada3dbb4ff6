// The hello, its answers, and the resumption of a session after a lost connection.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/session_table.h"
#include "layout/kv_layout.h"

namespace kvferry::core {
namespace {

void append(std::vector<std::uint8_t>& out, std::span<const std::uint8_t> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append(std::vector<std::uint8_t>& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    out.push_back(static_cast<std::uint8_t>(value >> shift));
  }
}

}  // namespace

void SessionTable::say(Peer& peer, wire::Message message, ActionSink& sink) {
  if (!peer.link_up) {
    return;
  }
  wire::Frame frame;
  frame.messages.push_back(std::move(message));
  sink.send_frame(SendFrame{peer.id, std::move(frame), true});
}

void SessionTable::start_hello(Peer& peer, Instant now, ActionSink& sink) {
  if (peer.session != nullptr) {
    return;
  }
  peer.handshake = std::make_unique<Handshake>();
  Handshake& handshake = *peer.handshake;
  environment_.fill_random(handshake.own_nonce);
  environment_.fill_random(handshake.own_half);
  handshake.gives_up_at = now + milliseconds(options_.hello_timeout_ms);
  handshake.repeat = wire::Hello{config_.self, handshake.own_nonce, handshake.own_half};
  say(peer, handshake.repeat, sink);
  timers_.set({TimerKind::kHello, peer.id}, now + milliseconds(options_.retransmit_min_ms));
}

void SessionTable::handle_handshake_message(const std::string& sender_key,
                                            const wire::Message& message, Instant now,
                                            ActionSink& sink) {
  if (const auto* hello = std::get_if<wire::Hello>(&message)) {
    handle_hello(sender_key, *hello, now, sink);
    return;
  }
  // All other handshake messages name a nonce or an epoch that their peer must hold.
  Peer* peer = nullptr;
  if (const auto* confirm = std::get_if<wire::HelloConfirm>(&message)) {
    for (auto& [id, candidate] : peers_) {
      if (candidate->handshake != nullptr && confirm->epoch != SessionEpoch{} &&
          candidate->handshake->epoch == confirm->epoch) {
        peer = candidate.get();
      }
    }
    if (peer == nullptr) {
      peer = find_by_epoch(confirm->epoch);
    }
    if (peer != nullptr && (sender_key.empty() || sender_key == peer->address.public_key)) {
      handle_hello_confirm(*peer, *confirm, now, sink);
      return;
    }
  } else if (const auto* reply = std::get_if<wire::HelloReply>(&message)) {
    peer = find_by_identity(identity_of(PeerAddress{reply->self.control_endpoint, sender_key}));
    if (peer != nullptr) {
      handle_hello_reply(*peer, *reply, now, sink);
      return;
    }
  } else if (const auto* refused = std::get_if<wire::HelloRefused>(&message)) {
    for (auto& [id, candidate] : peers_) {
      if (candidate->handshake != nullptr && candidate->initiates &&
          candidate->handshake->own_nonce == refused->echoed_nonce) {
        handle_hello_refused(*candidate, *refused, now, sink);
        return;
      }
    }
  } else {
    SessionEpoch epoch;
    if (const auto* confirmed = std::get_if<wire::HelloConfirmed>(&message)) {
      epoch = confirmed->epoch;
    } else if (const auto* resumption = std::get_if<wire::Resume>(&message)) {
      epoch = resumption->epoch;
    } else if (const auto* resumed = std::get_if<wire::Resumed>(&message)) {
      epoch = resumed->epoch;
    } else if (const auto* ended = std::get_if<wire::SessionEnded>(&message)) {
      epoch = ended->epoch;
    }
    peer = find_by_epoch(epoch);
    const bool own =
        peer != nullptr && (sender_key.empty() || sender_key == peer->address.public_key);
    if (own && std::holds_alternative<wire::HelloConfirmed>(message)) {
      handle_hello_confirmed(*peer, epoch, now, sink);
      return;
    }
    if (own && std::holds_alternative<wire::Resumed>(message)) {
      handle_resumed(*peer, std::get<wire::Resumed>(message), now, sink);
      return;
    }
    if (own && std::holds_alternative<wire::SessionEnded>(message)) {
      Failure cause = std::get<wire::SessionEnded>(message).reason;
      cause.where = FailureWhere::kPeer;
      cause.peer = peer->address.endpoint;
      end(*peer, cause, false, now, sink);
      return;
    }
    if (const auto* resumption = std::get_if<wire::Resume>(&message)) {
      if (own) {
        handle_resume(*peer, *resumption, now, sink);
        return;
      }
      if (Peer* sender = find_speaker(sender_key, epoch); sender != nullptr) {
        if (revive(*sender, epoch, now, sink)) {
          handle_resume(*sender, *resumption, now, sink);
          return;
        }
        say(*sender,
            wire::SessionEnded{epoch, Failure{FailureCode::kPeerLost,
                                              FailureWhere::kPeer,
                                              "the session has ended here",
                                              {},
                                              -1}},
            sink);
      }
    }
  }
  sink.count("stale_messages");
}

std::optional<Failure> SessionTable::refuse_introduction(const wire::Introduction& peer,
                                                         ActionSink& sink) const {
  const auto refuse = [&](FailureCode code, std::string what) {
    return Failure{code, FailureWhere::kPeer, std::move(what), peer.control_endpoint, -1};
  };
  if (peer.major != config_.self.major) {
    return refuse(FailureCode::kSessionRefused,
                  fmt::format("protocol version: {}.{} here, {}.{} at the peer", config_.self.major,
                              config_.self.minor, peer.major, peer.minor));
  }
  if (peer.role == config_.self.role) {
    return refuse(FailureCode::kSessionRefused,
                  fmt::format("role: both sides are {}", to_string(peer.role)));
  }
  if (const Status sound = layout::check_shape(peer.layout); !sound) {
    return refuse(FailureCode::kLayoutMismatch,
                  "the peer's layout is unsound: " + sound.error().what);
  }
  if (const auto mismatch = layout::compare(config_.self.layout, peer.layout)) {
    return refuse(FailureCode::kLayoutMismatch, mismatch->to_text());
  }
  if (const auto mismatch = layout::compare(config_.self.numerics, peer.numerics)) {
    if (config_.self.require_identical || peer.require_identical) {
      return refuse(FailureCode::kNumericsMismatch, mismatch->to_text());
    }
    sink.note(
        fmt::format("numerics differ from {}: {}", peer.control_endpoint, mismatch->to_text()));
  }
  if (choose_transport(peer).empty()) {
    return refuse(FailureCode::kSessionRefused, "no transport in common");
  }
  return std::nullopt;
}

std::string SessionTable::choose_transport(const wire::Introduction& peer) const {
  for (const wire::TransportOffer& own : config_.self.transports) {
    for (const wire::TransportOffer& other : peer.transports) {
      if (own.name == other.name) {
        return own.name;
      }
    }
  }
  return {};
}

// Prefill. An old or repeated hello replaces nothing: a session that lives goes on until the nonce
// of this handshake has come back.
void SessionTable::handle_hello(const std::string& sender_key, const wire::Hello& hello,
                                Instant now, ActionSink& sink) {
  const PeerAddress address{hello.self.control_endpoint, sender_key};
  Peer* peer = find_by_identity(identity_of(address));
  if (config_.self.role != Role::kPrefill || (peer != nullptr && peer->initiates)) {
    sink.count("unexpected_hellos");
    return;
  }
  if (peer == nullptr) {
    peer = add_peer(address, false);
    if (peer == nullptr) {
      sink.count("peers_refused");
      return;
    }
  }
  peer->last_heard = now;
  peer->ever_heard = true;
  if (peer->handshake != nullptr && peer->handshake->peer_nonce == hello.nonce) {
    if (peer->link_up) {
      say(*peer, peer->handshake->repeat, sink);
    }
    return;
  }
  if (!guards_.has(Guard::kHelloNonce) && peer->session != nullptr) {
    end(*peer,
        Failure{FailureCode::kPeerLost, FailureWhere::kPeer, "the peer says hello again",
                address.endpoint, -1},
        false, now, sink);
  }
  peer->handshake = std::make_unique<Handshake>();
  Handshake& handshake = *peer->handshake;
  handshake.peer_nonce = hello.nonce;
  handshake.peer_half = hello.secret_half;
  handshake.gives_up_at = now + milliseconds(options_.hello_timeout_ms);
  timers_.set({TimerKind::kHandshake, peer->id}, handshake.gives_up_at);
  if (const auto refusal = refuse_introduction(hello.self, sink)) {
    sink.count("hellos_refused");
    peer->last_cause = *refusal;
    peer->pending_self = {};
    handshake.repeat = wire::HelloRefused{hello.nonce, *refusal};
  } else {
    environment_.fill_random(handshake.own_nonce);
    environment_.fill_random(handshake.own_half);
    do {
      handshake.epoch = SessionEpoch(environment_.random_u64());
    } while (handshake.epoch == SessionEpoch{} || by_epoch_.contains(handshake.epoch));
    peer->pending_self = hello.self;
    handshake.repeat =
        wire::HelloReply{config_.self,       handshake.peer_nonce, handshake.own_nonce,
                         handshake.own_half, handshake.epoch,      choose_transport(hello.self)};
  }
  if (!peer->link_up) {
    if (guards_.has(Guard::kPeerIncarnation)) {
      peer->address = address;
    }
    dial(*peer, now, sink);
  } else {
    say(*peer, handshake.repeat, sink);
  }
}

void SessionTable::handle_hello_reply(Peer& peer, const wire::HelloReply& reply, Instant now,
                                      ActionSink& sink) {
  if (!peer.initiates || peer.handshake == nullptr ||
      reply.echoed_nonce != peer.handshake->own_nonce) {
    sink.count("stale_messages");
    return;
  }
  Handshake& handshake = *peer.handshake;
  peer.last_heard = now;
  peer.ever_heard = true;
  if (peer.session == nullptr) {
    if (reply.epoch == SessionEpoch{} || by_epoch_.contains(reply.epoch)) {
      sink.count("stale_messages");
      return;
    }
    if (const auto refusal = refuse_introduction(reply.self, sink)) {
      fail_hello(peer, *refusal, true, now, sink);
      return;
    }
    handshake.peer_nonce = reply.nonce;
    handshake.peer_half = reply.secret_half;
    handshake.epoch = reply.epoch;
    handshake.repeat = wire::HelloConfirm{reply.epoch, reply.nonce};
    // Before the confirmation leaves: prefill's first write may come as soon as it arrives.
    if (!make_session(peer, reply.self, reply.transport, now, sink)) {
      return;
    }
  }
  say(peer, handshake.repeat, sink);
}

void SessionTable::handle_hello_confirm(Peer& peer, const wire::HelloConfirm& confirm, Instant now,
                                        ActionSink& sink) {
  if (peer.initiates) {
    sink.count("stale_messages");
    return;
  }
  const bool pending = peer.handshake != nullptr && peer.handshake->epoch == confirm.epoch;
  if (!pending) {
    // Said again: the answer was lost.
    if (peer.session != nullptr && peer.session->epoch == confirm.epoch) {
      say(peer, wire::HelloConfirmed{confirm.epoch}, sink);
    }
    return;
  }
  if (peer.handshake->own_nonce != confirm.echoed_nonce) {
    sink.count("stale_messages");
    return;
  }
  if (peer.session != nullptr) {
    auto handshake = std::move(peer.handshake);
    const bool link_up = peer.link_up;
    end(peer,
        Failure{FailureCode::kPeerLost, FailureWhere::kPeer, "the peer opened a new session",
                peer.address.endpoint, -1},
        false, now, sink);
    peer.handshake = std::move(handshake);
    peer.link_up = link_up;
  }
  const std::string transport = choose_transport(peer.pending_self);
  if (!make_session(peer, peer.pending_self, transport, now, sink)) {
    return;
  }
  go_live(peer, now);
  say(peer, wire::HelloConfirmed{confirm.epoch}, sink);
}

void SessionTable::handle_hello_confirmed(Peer& peer, SessionEpoch, Instant now, ActionSink&) {
  if (peer.initiates && !peer.session->live) {
    go_live(peer, now);
  }
}

void SessionTable::handle_hello_refused(Peer& peer, const wire::HelloRefused& refused, Instant now,
                                        ActionSink& sink) {
  Failure cause = refused.reason;
  cause.where = FailureWhere::kPeer;
  cause.peer = peer.address.endpoint;
  fail_hello(peer, cause, true, now, sink);
}

// for_good: the two can't be a pair as they are; asked again only at the slowest pace, since the
// peer may be restarted with other settings at the same address (in plain mode even with the same
// identity).
void SessionTable::fail_hello(Peer& peer, const Failure& cause, bool for_good, Instant now,
                              ActionSink& sink) {
  if (peer.session != nullptr) {
    by_epoch_.erase(peer.session->epoch);
    sink.close_data_session(peer.session->epoch);
    peer.session.reset();
  }
  peer.handshake.reset();
  peer.last_cause = cause;
  timers_.cancel({TimerKind::kHello, peer.id});
  sink.hang_up(peer.id);
  peer.link_up = false;
  if (for_good) {
    outputs_.emplace_back(PeerRefused{peer.id, cause});
    peer.redial_after = milliseconds(options_.redial_max_ms);
  } else if (peer.redial_after == Duration{}) {
    peer.redial_after = milliseconds(options_.redial_min_ms);
  }
  schedule_redial(peer, now, sink);
}

bool SessionTable::make_session(Peer& peer, const wire::Introduction& peer_self,
                                const std::string& transport, Instant now, ActionSink& sink) {
  auto session = std::make_unique<Session>(peer.handshake->epoch, options_, guards_);
  session->peer_self = peer_self;
  session->secret = session_secret(*peer.handshake);
  session->last_heard = session->last_sent = now;
  const Status opened = open_data(*session, transport, sink);
  by_epoch_[session->epoch] = peer.id;
  peer.session = std::move(session);
  if (!opened) {
    Failure cause = opened.error();
    cause.peer = peer.address.endpoint;
    if (peer.initiates) {
      fail_hello(peer, cause, true, now, sink);
    } else {
      end(peer, cause, true, now, sink);
    }
    return false;
  }
  return true;
}

Status SessionTable::open_data(const Session& session, const std::string& transport,
                               ActionSink& sink) const {
  OpenDataSession open;
  open.epoch = session.epoch;
  open.local_role = config_.self.role;
  open.secret = session.secret;
  open.transport = transport;
  for (const wire::TransportOffer& offer : session.peer_self.transports) {
    if (offer.name == transport) {
      open.peer_blob = offer.blob;
    }
  }
  open.peer_regions = session.peer_self.layout.regions;
  return sink.open_data_session(std::move(open));
}

void SessionTable::go_live(Peer& peer, Instant now) {
  peer.session->live = true;
  peer.session->last_heard = now;
  peer.handshake.reset();
  peer.redial_after = Duration{};
  peer.last_heard = now;
  peer.ever_heard = true;
  timers_.cancel({TimerKind::kHello, peer.id});
  timers_.cancel({TimerKind::kHandshake, peer.id});
  timers_.cancel({TimerKind::kGrace, peer.id});
  timers_.set({TimerKind::kHeartbeat, peer.id}, now + milliseconds(options_.heartbeat_interval_ms));
  outputs_.emplace_back(SessionStarted{peer.session->epoch, peer.id});
}

// Prefill's half first, so that both sides mix in the same order.
wire::Secret SessionTable::session_secret(const Handshake& handshake) const {
  const bool is_prefill = config_.self.role == Role::kPrefill;
  std::vector<std::uint8_t> key;
  append(key, is_prefill ? handshake.own_half : handshake.peer_half);
  append(key, is_prefill ? handshake.peer_half : handshake.own_half);
  std::vector<std::uint8_t> data;
  append(data, is_prefill ? handshake.own_nonce : handshake.peer_nonce);
  append(data, is_prefill ? handshake.peer_nonce : handshake.own_nonce);
  append(data, handshake.epoch.value());
  return environment_.hmac(key, data);
}

wire::Proof SessionTable::resume_proof(const Session& session, bool answer,
                                       const wire::Nonce& nonce) const {
  constexpr std::string_view kAsk = "resume";
  constexpr std::string_view kAnswer = "resumed";
  std::vector<std::uint8_t> data;
  for (const char c : answer ? kAnswer : kAsk) {
    data.push_back(static_cast<std::uint8_t>(c));
  }
  append(data, session.epoch.value());
  append(data, nonce);
  return environment_.hmac(session.secret, data);
}

// A session that has ended here is not taken up again, whatever of it may still be known: its rooms
// have failed and its slots will be named again. Without that guard it would live on with its
// numbers (kEndedNotResumed) or with none (kResumeNeedsState).
inline bool SessionTable::revive(Peer& peer, SessionEpoch epoch, Instant now, ActionSink& sink) {
  const bool with_state = !guards_.has(Guard::kEndedNotResumed);
  const bool without_state = !guards_.has(Guard::kResumeNeedsState);
  const bool known = peer.session == nullptr && peer.former && peer.former->epoch == epoch;
  if (!known || !(with_state || without_state)) {
    return false;
  }
  std::unique_ptr<Session> session = std::move(peer.former);
  if (without_state) {
    auto empty = std::make_unique<Session>(epoch, options_, guards_);
    empty->peer_self = session->peer_self;
    empty->secret = session->secret;
    session = std::move(empty);
  }
  if (!open_data(*session, choose_transport(session->peer_self), sink)) {
    return false;
  }
  session->suspended_since.reset();
  session->last_sent = now;
  session->outbox.rewind();
  by_epoch_[epoch] = peer.id;
  peer.session = std::move(session);
  go_live(peer, now);
  dirty_.insert(peer.id);
  if (!peer.link_up) {
    dial(peer, now, sink);
  }
  return true;
}

void SessionTable::handle_resume(Peer& peer, const wire::Resume& resume, Instant now,
                                 ActionSink& sink) {
  Session& session = *peer.session;
  const bool proven = resume.proof == resume_proof(session, false, resume.nonce);
  if (!session.live || (!proven && guards_.has(Guard::kResumeNeedsState))) {
    sink.count("foreign_messages");
    return;
  }
  session.last_heard = peer.last_heard = now;
  // Without a connection of our own the answer waits for it: the peer asks again.
  say(peer, wire::Resumed{session.epoch, resume.nonce, resume_proof(session, true, resume.nonce)},
      sink);
}

void SessionTable::handle_resumed(Peer& peer, const wire::Resumed& resumed, Instant now,
                                  ActionSink& sink) {
  Session& session = *peer.session;
  const bool proven = resumed.echoed_nonce == session.resume_nonce &&
                      resumed.proof == resume_proof(session, true, session.resume_nonce);
  if (!session.suspended_since || (!proven && guards_.has(Guard::kResumeNeedsState))) {
    sink.count("stale_messages");
    return;
  }
  session.suspended_since.reset();
  session.last_heard = peer.last_heard = now;
  peer.redial_after = Duration{};
  timers_.cancel({TimerKind::kGrace, peer.id});
  timers_.cancel({TimerKind::kHello, peer.id});
  session.outbox.rewind();
  dirty_.insert(peer.id);
  sink.count("sessions_resumed");
}

}  // namespace kvferry::core
