// The prefill translator between the messages of both sides; its sessions and rooms have files of
// their own.
#include "dialect/sglang/prefill_translator.h"

#include <fmt/format.h>

#include <algorithm>

#include "dialect/sglang/prefill_session.h"

namespace kvferry::sglang {
namespace {

// After a longer time without a turn the whole process was stopped, and what is heard of the peers
// counts before the core's deadlines (rule 13). A real peer would have gone on talking; a virtual
// one was stopped, too, so it says now that it lives.
constexpr Duration kLongTurn = milliseconds(400);
constexpr std::size_t kRememberedSuccesses = 4'096;  // of a session

}  // namespace

PrefillTranslator::PrefillTranslator(PrefillTranslatorConfig config) : config_(std::move(config)) {}
PrefillTranslator::~PrefillTranslator() = default;

PrefillTranslator::Session* PrefillTranslator::find(PeerId peer) const {
  const auto found = by_peer_.find(peer);
  return found == by_peer_.end() ? nullptr : found->second;
}

void PrefillTranslator::part_from_peer(Session& session) {
  if (session.peer) {
    by_peer_.erase(*session.peer);
    session.peer.reset();
  }
}

PrefillTranslator::Session* PrefillTranslator::find(const RankEndpoint& endpoint) const {
  for (const auto& [name, session] : sessions_) {
    if (session->rank.endpoint == endpoint) {
      return session.get();
    }
  }
  return nullptr;
}

// --- what goes out ---

void PrefillTranslator::say(Session& session, wire::Message message) {
  wire::Frame frame{session.epoch, session.next_sequence++, session.heard_through, {}};
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
}

void PrefillTranslator::say_once(Session& session, wire::Message message) {
  wire::Frame frame{session.epoch, 0, session.heard_through, {}};
  frame.messages.push_back(std::move(message));
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
}

void PrefillTranslator::send(Flavour flavour, const RankEndpoint& endpoint, Message message) {
  outputs_.emplace_back(ToEndpoint{endpoint, std::move(message), flavour});
}

void PrefillTranslator::not_done(std::string_view counter, std::string what) {
  outputs_.emplace_back(NotDone{counter, std::move(what)});
}

void PrefillTranslator::refuse(Flavour flavour, const RoomTarget& target, std::string reason) {
  send(flavour, target.endpoint,
       RoomStatus{target.room, KvPoll::kFailed, config_.prefill_rank, reason});
  not_done("sglang_rooms_refused",
           fmt::format("room {} of {}: {}", target.room.value(), to_text(target.endpoint), reason));
}

void PrefillTranslator::acknowledge(const Session& session, RoomId room, std::uint64_t generation) {
  send(session.rank.flavour(), session.rank.endpoint,
       AbortAck{room, config_.prefill_rank, generation});
}

// --- SGLang ---

void PrefillTranslator::handle(const Message& message) {
  std::visit([this](const auto& body) { on(body); }, message);
}

template <typename Other>
void PrefillTranslator::on(const Other& message) {
  not_done("sglang_messages_not_served",
           fmt::format("{} is not served", kind_name(Message(message))));
}

// --- the core ---

void PrefillTranslator::handle_dial(PeerId peer, const PeerAddress& address) {
  const auto found = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& each) {
    return each.second->key == address.public_key && !each.second->over;
  });
  if (found == sessions_.end()) {
    outputs_.emplace_back(VirtualPeerDown{peer});
    return;
  }
  part_from_peer(*found->second);
  found->second->peer = peer;
  by_peer_.emplace(peer, found->second.get());
  outputs_.emplace_back(VirtualPeerUp{peer});
}

bool PrefillTranslator::owns(const PeerAddress& address) const {
  return address.public_key.starts_with(kVirtualKeyPrefix);
}

// --- time ---

void PrefillTranslator::advance(Instant now) {
  if (now - now_ > kLongTurn) {
    for (auto& [name, session] : sessions_) {
      if (session->live) {
        say_once(*session, wire::Heartbeat{});
      }
    }
  }
  now_ = now;
  while (!greetings_.empty() && greetings_.front().due <= now) {
    const Greeting greeting = std::move(greetings_.front());
    greetings_.pop_front();
    const auto found = sessions_.find(greeting.session);
    if (found != sessions_.end() && found->second->key == greeting.key && !found->second->live &&
        !found->second->over) {
      close(*found->second, "this prefill rank did not take the session up in time");
    }
  }
}

std::optional<Instant> PrefillTranslator::next_deadline() const {
  return greetings_.empty() ? std::nullopt : std::optional(greetings_.front().due);
}

void PrefillTranslator::handle_endpoint_lost(const RankEndpoint& endpoint) {
  if (Session* session = find(endpoint)) {
    close(*session, "the connection to decode was lost");
  }
}

void PrefillTranslator::handle_hang_up(PeerId peer) {
  if (Session* session = find(peer)) {
    part_from_peer(*session);
    close(*session, "prefill ended the session");
  }
}

void PrefillTranslator::handle_frame(PeerId peer, const wire::Frame& frame) {
  Session* session = find(peer);
  if (session == nullptr) {
    return;
  }
  if (frame.sequence != 0) {
    if (frame.session != session->epoch || frame.sequence > session->heard_through + 1) {
      return;  // of another life, or one before it was lost: the core says it again
    }
    session->heard_through =
        std::max(session->heard_through, frame.sequence + frame.messages.size() - 1);
  }
  for (const wire::Message& message : frame.messages) {
    // Looked up each time: a message may end the session.
    session = find(peer);
    if (session == nullptr) {
      return;
    }
    std::visit([&](const auto& body) { on(*session, body); }, message);
  }
  session = find(peer);
  if (session != nullptr && frame.sequence != 0) {
    say_once(*session, wire::Ack{});
  }
}

void PrefillTranslator::on(Session& session, const wire::HelloReply& reply) {
  if (reply.echoed_nonce != session.nonce) {
    return;
  }
  wire::Frame frame;
  frame.messages.emplace_back(wire::HelloConfirm{reply.epoch, reply.nonce});
  session.epoch = reply.epoch;
  outputs_.emplace_back(VirtualFrame{session.key, std::move(frame)});
}

void PrefillTranslator::on(Session& session, const wire::HelloConfirmed& confirmed) {
  if (session.live || confirmed.epoch != session.epoch) {
    return;
  }
  session.live = true;
  // Metadata that came after an ABORT is a new life of its room.
  for (const RoomId room : std::exchange(session.early_aborts, {})) {
    say(session, abort_of(session, room));
  }
  for (auto& [room, attempt] : session.attempts) {
    grant(session, attempt);
  }
}

void PrefillTranslator::on(Session& session, const wire::HelloRefused& refused) {
  if (refused.echoed_nonce == session.nonce) {
    session.refused = refused.reason.what;
    close(session, refused.reason.what);
  }
}

void PrefillTranslator::on(Session& session, const wire::SessionEnded& ended) {
  if (ended.epoch == session.epoch) {
    close(session, ended.reason.what);
  }
}

void PrefillTranslator::on(Session& session, const wire::Heartbeat&) {
  say_once(session, wire::Heartbeat{});
}

void PrefillTranslator::on(Session& session, const wire::Done& done) {
  const auto found = session.attempts.find(done.room);
  if (found == session.attempts.end() || found->second.id != done.attempt ||
      found->second.status_sent) {
    return;  // said twice, or its Abort has crossed it and Drained follows
  }
  send(session.rank.flavour(), session.rank.endpoint,
       RoomStatus{done.room, KvPoll::kSuccess, config_.prefill_rank, {}});
  finish(session, done.room);
  if (session.succeeded.insert(done.room).second) {
    session.succeeded_order.push_back(done.room);
  }
  if (session.succeeded_order.size() > kRememberedSuccesses) {
    session.succeeded.erase(session.succeeded_order.front());
    session.succeeded_order.pop_front();
  }
  wire::Consumed consumed;
  consumed.room = done.room;
  consumed.attempt = done.attempt;
  consumed.low_water_mark = low_water_mark(session);
  say(session, consumed);
}

void PrefillTranslator::on(Session& session, const wire::Failed& failed) {
  const auto found = session.attempts.find(failed.room);
  const bool names_it = found != session.attempts.end() &&
                        (failed.attempt == AttemptId{} || failed.attempt == found->second.id);
  if (!names_it || found->second.status_sent) {
    return;
  }
  found->second.status_sent = true;
  send(session.rank.flavour(), session.rank.endpoint,
       RoomStatus{failed.room, KvPoll::kFailed, config_.prefill_rank, failed.cause.what});
}

void PrefillTranslator::on(Session& session, const wire::Drained& drained) {
  const auto found =
      std::find_if(session.attempts.begin(), session.attempts.end(), [&](const auto& each) {
        return each.second.is_granted && each.second.id == drained.attempt;
      });
  if (found == session.attempts.end() || !drained.clean) {
    return;
  }
  if (found->second.abort_generation) {
    acknowledge(session, found->first, *found->second.abort_generation);
  }
  finish(session, found->first);
}

}  // namespace kvferry::sglang
