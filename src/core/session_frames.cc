// What sessions say to each other: frames that come in, acknowledgement, frames that leave.
#include <utility>

#include "core/session_table.h"

namespace kvferry::core {

// --- frames that come in ---

void SessionTable::handle_frame(FrameArrived& event, Instant now, ActionSink& sink) {
  wire::Frame& frame = event.frame;
  if (frame.session == SessionEpoch{}) {
    for (const wire::Message& message : frame.messages) {
      handle_handshake_message(event.sender_key, message, now, sink);
    }
    return;
  }
  Peer* peer = find_by_epoch(frame.session);
  if (peer == nullptr && !guards_.has(Guard::kSessionEpoch)) {
    // The sender's present session, whichever it meant.
    Peer* sender = find_speaker(event.sender_key, frame.session);
    const bool live = sender != nullptr && sender->session != nullptr && sender->session->live;
    peer = live ? sender : nullptr;
  }
  if (peer == nullptr) {
    sink.count("stale_messages", frame.messages.size());
    if (Peer* sender = find_speaker(event.sender_key, frame.session);
        sender != nullptr && sender->link_up) {
      say(*sender,
          wire::SessionEnded{frame.session, Failure{FailureCode::kPeerLost,
                                                    FailureWhere::kPeer,
                                                    "the session is not known here any more",
                                                    {},
                                                    -1}},
          sink);
    }
    return;
  }
  if (!event.sender_key.empty() && event.sender_key != peer->address.public_key) {
    // Somebody else's session: only its two ends speak in it.
    sink.count("foreign_messages", frame.messages.size());
    return;
  }
  handle_session_frame(*peer, frame, now, sink);
}

void SessionTable::handle_session_frame(Peer& peer, wire::Frame& frame, Instant now,
                                        ActionSink& sink) {
  if (!peer.session->live) {
    // Decode: prefill speaks in the session, so it has had our confirmation. (Prefill's sessions
    // live from their first moment on.)
    go_live(peer, now);
  }
  Session& session = *peer.session;
  session.last_heard = peer.last_heard = now;
  peer.ever_heard = true;
  acknowledged(session, frame.acknowledge, now, sink);
  dirty_.insert(peer.id);
  std::uint64_t sequence = frame.sequence;
  for (wire::Message& message : frame.messages) {
    if (sequence != 0) {
      session.acknowledge_due = true;
      const auto accepted = session.inbox.accept(sequence++);
      if (accepted != ReceiveWindow::Accept::kNew) {
        sink.count(accepted == ReceiveWindow::Accept::kDuplicate ? "duplicate_messages"
                                                                 : "messages_beyond_window");
        continue;
      }
    }
    if (std::holds_alternative<wire::Heartbeat>(message) ||
        std::holds_alternative<wire::Ack>(message)) {
      continue;
    }
    if (const auto* unknown = std::get_if<wire::Unsupported>(&message)) {
      sink.count("unsupported_messages");
      if (!unknown->is_answer) {
        send_once(session.epoch, wire::Unsupported{unknown->kind, true}, sink, now);
      }
      continue;
    }
    outputs_.emplace_back(MessageDelivered{session.epoch, std::move(message)});
  }
}

void SessionTable::acknowledged(Session& session, std::uint64_t through, Instant now,
                                ActionSink& sink) {
  std::vector<OwnerId> settled;
  if (!session.outbox.acknowledge(through, now, settled)) {
    sink.count("impossible_acknowledgements");
  }
  for (const OwnerId owner : settled) {
    outputs_.emplace_back(OwnerSettled{session.epoch, owner});
  }
}

// --- frames that leave ---

void SessionTable::flush(Instant now, ActionSink& sink) {
  while (!dirty_.empty()) {
    const PeerId id = *dirty_.begin();
    dirty_.erase(dirty_.begin());
    if (Peer* peer = find_peer(id);
        peer != nullptr && peer->session != nullptr && peer->session->live) {
      flush_peer(*peer, now, sink);
    }
  }
}

void SessionTable::flush_peer(Peer& peer, Instant now, ActionSink& sink) {
  Session& session = *peer.session;
  // While suspended nothing leaves; what waits goes out when the session is resumed.
  if (peer.link_up && !session.suspended_since) {
    wire::Frame frame;
    while (session.outbox.repeat_frame(now, frame)) {
      transmit(peer, std::move(frame), true, now, sink);
      frame = {};
    }
    bool urgent = false;
    while (session.outbox.next_frame(now, frame, urgent)) {
      transmit(peer, std::move(frame), urgent, now, sink);
      frame = {};
    }
    if (!guards_.has(Guard::kAcknowledgedByCore)) {
      acknowledged(session, session.outbox.last_number(), now, sink);
    }
    if (session.acknowledge_due) {
      frame = {};
      frame.messages.emplace_back(wire::Ack{});
      transmit(peer, std::move(frame), true, now, sink);
    }
  }
  if (session.outbox.repeat_at() != Instant::max()) {
    timers_.set({TimerKind::kRepeat, peer.id}, session.outbox.repeat_at());
  } else {
    timers_.cancel({TimerKind::kRepeat, peer.id});
  }
}

void SessionTable::transmit(Peer& peer, wire::Frame frame, bool urgent, Instant now,
                            ActionSink& sink) {
  if (!peer.link_up) {
    return;  // what is owed stays owed
  }
  Session& session = *peer.session;
  frame.session = session.epoch;
  frame.acknowledge = session.inbox.processed_through();
  session.acknowledge_due = false;
  session.last_sent = now;
  sink.send_frame(SendFrame{peer.id, std::move(frame), urgent});
}

}  // namespace kvferry::core
