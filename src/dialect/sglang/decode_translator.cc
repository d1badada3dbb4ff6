// Peers and their sessions; decode_translator_rooms.cc has what concerns rooms.
#include <fmt/format.h>

#include <algorithm>

#include "dialect/sglang/decode_peer.h"
#include "dialect/sglang/stock_shape.h"
#include "dialect/sglang/virtual_nonce.h"

namespace kvferry::sglang {
namespace {

// Longer than a turn of the driver lasts without one.
constexpr Duration kPause = milliseconds(500);

}  // namespace

DecodeTranslator::DecodeTranslator(DecodeTranslatorConfig config, AuxShadow& shadow)
    : config_(std::move(config)), shadow_(shadow), rooms_(config_.max_rooms) {}
DecodeTranslator::~DecodeTranslator() = default;

// --- what goes out ---

void DecodeTranslator::say(Peer& peer, wire::Message message) {
  wire::Frame frame{peer.epoch, peer.next_sequence++, peer.heard_through, {}};
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{peer.address.public_key, std::move(frame)});
}

void DecodeTranslator::say_once(Peer& peer, wire::Message message) {
  wire::Frame frame{peer.epoch, 0, peer.heard_through, {}};
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{peer.address.public_key, std::move(frame)});
}

void DecodeTranslator::say_in_hello(const Peer& peer, wire::Message message) {
  wire::Frame frame;
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{peer.address.public_key, std::move(frame)});
}

void DecodeTranslator::send(const RankEndpoint& endpoint, Message message) {
  outputs_.emplace_back(ToEndpoint{endpoint, std::move(message)});
}

void DecodeTranslator::not_done(std::string_view counter, std::string what) {
  outputs_.emplace_back(NotDone{counter, std::move(what)});
}

// --- peers ---

DecodeTranslator::Peer* DecodeTranslator::find(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : found->second.get();
}

// The peer, while the session in which the target was granted lives.
DecodeTranslator::Peer* DecodeTranslator::find_live(const DecodeTarget& target) const {
  Peer* peer = find(target.peer);
  return peer != nullptr && peer->is_live && peer->epoch == target.epoch ? peer : nullptr;
}

bool DecodeTranslator::owns(const PeerAddress& address) const {
  return prefill_rank_of(address).has_value();
}

bool DecodeTranslator::is_nixl() const {
  return std::holds_alternative<NixlRegistration>(config_.registration);
}

// SGLang's prefill dies of a registration of host memory whose share of the heads is another than
// its own, in NIXL's flavour: its only control thread ends.
Result<StockPairing> DecodeTranslator::pair(const PrefillRank& rank) const {
  const LayoutShape& own = config_.self.layout;
  const std::uint32_t own_size = own.rank.tp_size;
  if (is_nixl() && decode_shape(own).kv == KvKind::kHeads && rank.shape.tp_size != own_size) {
    return fail(
        FailureCode::kLayoutMismatch,
        fmt::format("prefill has {} TP ranks and decode {}: in NIXL's flavour SGLang writes "
                    "heads to host memory with equal sizes alone",
                    rank.shape.tp_size, own_size),
        FailureWhere::kPeer, to_text(rank.endpoint));
  }
  return pair_with(rank, own);
}

const RankEndpoint& DecodeTranslator::own_endpoint() const {
  return std::visit([](const auto& each) -> const RankEndpoint& { return each.endpoint; },
                    config_.registration);
}

// A dialled peer is registered with each time: what answers at the endpoint may be another process
// than before.
void DecodeTranslator::handle_dial(PeerId id, const PeerAddress& address) {
  const std::optional<PrefillRank> rank = prefill_rank_of(address);
  if (!rank) {
    return;
  }
  Peer* peer = find(id);
  if (peer == nullptr) {
    auto made = std::make_unique<Peer>(
        Peer{id, address, *rank, pair(*rank), false, {}, {}, false, 1, 0, {}});
    peer = peers_.emplace(id, std::move(made)).first->second.get();
    ++endpoints_[address.endpoint].users;
  } else {
    end_session(*peer);
  }
  Endpoint& endpoint = endpoints_[address.endpoint];
  outputs_.emplace_back(HoldEndpoint{rank->endpoint});
  if (peer->pairing) {
    std::visit([&](const auto& registration) { send(rank->endpoint, registration); },
               config_.registration);
  }
  peer->is_up = endpoint.is_up;
  if (peer->is_up) {
    outputs_.emplace_back(VirtualPeerUp{id});
  }
}

void DecodeTranslator::handle_endpoint_up(const RankEndpoint& endpoint) {
  const auto found = endpoints_.find(to_text(endpoint));
  if (found == endpoints_.end()) {
    return;
  }
  found->second.is_up = true;
  for (const auto& [id, peer] : peers_) {
    if (peer->rank.endpoint == endpoint && !peer->is_up) {
      peer->is_up = true;
      outputs_.emplace_back(VirtualPeerUp{id});
    }
  }
}

void DecodeTranslator::handle_endpoint_lost(const RankEndpoint& endpoint) {
  const auto at_endpoint = [&](const DecodeTarget& target) { return target.endpoint == endpoint; };
  const std::vector<AttemptId> affected = rooms_.with_target(at_endpoint);
  for (const AttemptId id : affected) {
    DecodeAttempt& attempt = *rooms_.find(id);
    for (DecodeTarget& target : attempt.targets) {
      if (at_endpoint(target) && !target.peer_is_through() &&
          attempt.phase != DecodeAttempt::Phase::kGathering) {
        release_endpoint(target);
        target.is_lost = true;
      }
    }
    if (attempt.phase != DecodeAttempt::Phase::kAborting) {
      // Said in words, since the loss of a dummy alone means nothing to the core.
      say_failed(attempt,
                 at_peer(FailureCode::kPeerLost,
                         "the connection to a prefill rank of the room was lost", endpoint));
    }
    if (attempt.phase == DecodeAttempt::Phase::kGathering) {
      rooms_.close(id);
    }
  }
  for (const auto& [id, peer] : peers_) {
    if (peer->rank.endpoint == endpoint) {
      end_session(*peer);
      peer->is_up = false;
      outputs_.emplace_back(VirtualPeerDown{id});
    }
  }
  for (const AttemptId id : affected) {
    close_if_over(id);
  }
  if (const auto found = endpoints_.find(to_text(endpoint)); found != endpoints_.end()) {
    found->second.is_up = false;
  }
}

void DecodeTranslator::handle_hang_up(PeerId id) {
  Peer* peer = find(id);
  if (peer == nullptr) {
    return;
  }
  end_session(*peer);
  const RankEndpoint endpoint = peer->rank.endpoint;
  peers_.erase(id);
  --endpoints_[to_text(endpoint)].users;
  leave_if_unused(endpoint);
}

// Kept while an ABORT has to be said there.
void DecodeTranslator::leave_if_unused(const RankEndpoint& endpoint) {
  const auto found = endpoints_.find(to_text(endpoint));
  if (found != endpoints_.end() && found->second.users == 0) {
    endpoints_.erase(found);
    outputs_.emplace_back(LeaveEndpoint{endpoint});
  }
}

// The core awaits nothing of it any more. SGLang does not know: what it was granted is aborted.
void DecodeTranslator::end_session(Peer& peer) {
  if (peer.epoch == SessionEpoch{}) {
    return;
  }
  const auto in_session = [&](const DecodeTarget& target) {
    return target.peer == peer.id && target.epoch == peer.epoch;
  };
  const std::vector<AttemptId> affected = rooms_.with_target(in_session);
  peer.is_live = false;
  peer.epoch = {};
  peer.next_sequence = 1;
  peer.heard_through = 0;
  peer.aborted.clear();
  for (const AttemptId id : affected) {
    DecodeAttempt& attempt = *rooms_.find(id);
    if (attempt.phase == DecodeAttempt::Phase::kGathering) {
      rooms_.close(id);
      continue;
    }
    for (DecodeTarget& target : attempt.targets) {
      if (target.peer == peer.id && target.is_granted()) {
        target.core_is_through = true;
      }
    }
    start_abort(attempt);
    close_if_over(id);
  }
}

// What a kvferry prefill rank in its place would say of itself.
wire::Introduction DecodeTranslator::introduction(const Peer& peer,
                                                  wire::TransportOffer offer) const {
  wire::Introduction out = config_.self;
  out.role = Role::kPrefill;
  out.instance = fmt::format("sglang {}", peer.rank.registry);
  out.control_endpoint = peer.address.endpoint;
  out.incarnation = Incarnation{0, peer.epoch.value()};
  out.engine_epoch = kEngineEpoch;
  out.layout = peer.pairing->layout;
  out.require_identical = false;
  out.transports = {std::move(offer)};
  return out;
}

void DecodeTranslator::handle_frame(PeerId id, const wire::Frame& frame) {
  Peer* peer = find(id);
  if (peer == nullptr) {
    return;
  }
  if (frame.sequence != 0 &&
      (frame.session != peer->epoch || frame.sequence > peer->heard_through + 1)) {
    return;  // of another life, or one before it was lost: the core says it again
  }
  std::uint64_t sequence = frame.sequence;
  for (const wire::Message& message : frame.messages) {
    if (sequence != 0) {
      if (frame.session != peer->epoch) {
        return;  // a message of this frame has ended the session
      }
      const bool repeated = sequence++ <= peer->heard_through;
      if (repeated) {
        continue;
      }
      ++peer->heard_through;
    }
    std::visit([&](const auto& body) { on(*peer, body); }, message);
  }
  if (frame.sequence != 0 && frame.session == peer->epoch) {
    say_once(*peer, wire::Ack{});
  }
}

void DecodeTranslator::refuse_hello(const Peer& peer, const wire::Hello& hello,
                                    const Failure& reason) {
  not_done("sglang_peers_refused", fmt::format("{}: {}", peer.address.endpoint, reason.what));
  say_in_hello(peer, wire::HelloRefused{hello.nonce, reason});
}

void DecodeTranslator::on(Peer& peer, const wire::Hello& hello) {
  if (!peer.pairing) {
    refuse_hello(peer, hello, peer.pairing.error());
    return;
  }
  Result<wire::TransportOffer> offer = config_.reach(peer.rank);
  if (!offer) {
    refuse_hello(peer, hello, offer.error());
    return;
  }
  if (peer.epoch == SessionEpoch{} || peer.hello_nonce != hello.nonce) {
    end_session(peer);
    peer.hello_nonce = hello.nonce;
    peer.epoch = SessionEpoch(next_epoch_++);
  }
  wire::HelloReply reply;
  reply.transport = offer->name;
  reply.self = introduction(peer, std::move(*offer));
  reply.echoed_nonce = hello.nonce;
  reply.nonce = nonce_of(peer.epoch.value());
  reply.epoch = peer.epoch;
  say_in_hello(peer, std::move(reply));
}

void DecodeTranslator::on(Peer& peer, const wire::HelloConfirm& confirm) {
  if (peer.epoch == SessionEpoch{} || confirm.epoch != peer.epoch ||
      confirm.echoed_nonce != nonce_of(peer.epoch.value())) {
    return;
  }
  peer.is_live = true;
  say_in_hello(peer, wire::HelloConfirmed{peer.epoch});
}

void DecodeTranslator::on(Peer& peer, const wire::SessionEnded& ended) {
  if (ended.epoch == peer.epoch) {
    end_session(peer);
  }
}

void DecodeTranslator::on(Peer& peer, const wire::Heartbeat&) {
  if (peer.is_live) {
    say_once(peer, wire::Heartbeat{});
  }
}

// By the pause rule the core hears what waits before it looks at its deadlines; virtual peers were
// stopped with it and have said nothing.
void DecodeTranslator::advance(Instant now) {
  if (now - now_ > kPause) {
    for (const auto& [id, peer] : peers_) {
      if (peer->is_live) {
        say_once(*peer, wire::Heartbeat{});
      }
    }
  }
  now_ = now;
  for (const AttemptId id : rooms_.due_by(now)) {
    DecodeAttempt& attempt = *rooms_.find(id);
    if (attempt.phase == DecodeAttempt::Phase::kAborting) {
      repeat_abort(attempt);
    } else {
      look_at_aux(attempt);
    }
  }
}

}  // namespace kvferry::sglang
