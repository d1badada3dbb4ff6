// What the two sides of one session hold, and the peer process behind it. Data with no behaviour of
// its own: SessionTable moves it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/instant.h"
#include "base/peer_id.h"
#include "core/guards.h"
#include "core/outbox.h"
#include "kvferry/ids.h"
#include "wire/messages.h"

namespace kvferry::core {

// One completed hello (rule 7). Exists from the moment its epoch is known.
struct Session {
  Session(SessionEpoch session_epoch, const Options& options, Guards guards)
      : epoch(session_epoch), outbox(options), inbox(4 * options.send_window_messages, guards) {}

  SessionEpoch epoch;
  wire::Introduction peer_self;
  wire::Secret secret{};
  Outbox outbox;
  ReceiveWindow inbox;
  bool live = false;  // nonces have gone both ways
  bool acknowledge_due = false;
  // Set while the connection that we send on is lost; the session ends when the grace is over.
  std::optional<Instant> suspended_since;
  wire::Nonce resume_nonce{};
  Instant last_sent;
  Instant last_heard;
  std::deque<Instant> lane_failures;
  // Of the data path; nothing while the test is under way, or where there is none.
  std::optional<Status> path_test;
};

// A hello under way.
struct Handshake {
  wire::Nonce own_nonce{};
  wire::Nonce peer_nonce{};
  wire::Secret own_half{};
  wire::Secret peer_half{};
  SessionEpoch epoch;    // prefill draws it; decode learns it from the reply
  wire::Message repeat;  // our last word, said again until the answer comes
  Instant gives_up_at;
};

struct Peer {
  PeerId id;
  PeerAddress address;
  bool initiates = false;              // this side says hello (decode)
  bool paired = false;                 // wanted by keep_paired
  std::uint32_t interested_rooms = 0;  // rooms that wait for the session
  bool link_dialled = false;
  bool link_up = false;
  // No hello will ever succeed here: another process answers, or it was refused for good.
  bool unusable = false;
  std::uint32_t wrong_keys =
      0;  // handshakes in a row that somebody without the peer's key answered
  Failure last_cause{FailureCode::kPeerUnreachable, FailureWhere::kPath, "not tried yet", {}, -1};
  Duration redial_after{};
  Instant last_heard;
  bool ever_heard = false;
  std::uint32_t flaps = 0;  // sessions with it that ended
  SessionEpoch ended;       // the last session that ended: who still speaks in it is told so
  std::unique_ptr<Session> session;
  std::unique_ptr<Session> former;  // kept only where a guard of resumption is missing
  std::unique_ptr<Handshake> handshake;
  wire::Introduction pending_self;  // prefill: what the hello under way said
};

}  // namespace kvferry::core
