// Every control message as a plain value. The FlatBuffers schema (kvferry.fbs) is the wire form;
// the codec translates between the two, and nothing else sees the generated code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/layout_shape.h"
#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::wire {

inline constexpr std::uint16_t kProtocolMajor = 1;
inline constexpr std::uint16_t kProtocolMinor = 0;

using Nonce = std::array<std::uint8_t, 16>;
using Proof = std::array<std::uint8_t, 32>;  // HMAC-SHA256
using Secret = std::array<std::uint8_t, 32>;

// A transport that a side can be reached by, with its opaque address blob.
struct TransportOffer {
  std::string name;
  std::vector<std::uint8_t> blob;
  friend bool operator==(const TransportOffer&, const TransportOffer&) = default;
};

struct PeerLimits {
  std::uint32_t max_grant_slots = 0;
  std::uint32_t max_message_bytes = 0;
  std::uint32_t window_messages = 0;
  friend bool operator==(const PeerLimits&, const PeerLimits&) = default;
};

// What both sides say of themselves in a hello.
struct Introduction {
  std::uint16_t major = kProtocolMajor;
  std::uint16_t minor = kProtocolMinor;
  Role role = Role::kPrefill;
  std::string instance;
  std::string control_endpoint;  // where this side's ROUTER is dialled
  Incarnation incarnation;
  EngineEpoch engine_epoch;
  LayoutShape layout;
  Numerics numerics;
  bool require_identical = false;
  PeerLimits limits;
  std::vector<TransportOffer> transports;
  friend bool operator==(const Introduction&, const Introduction&) = default;
};

// decode -> prefill. Opens a session; replaces nothing until the nonces have gone both ways.
struct Hello {
  Introduction self;
  Nonce nonce{};
  Secret secret_half{};  // the link is encrypted; the session secret mixes both halves
  friend bool operator==(const Hello&, const Hello&) = default;
};
// prefill -> decode. Echoes the nonce and names the epoch that the session will have.
struct HelloReply {
  Introduction self;
  Nonce echoed_nonce{};
  Nonce nonce{};
  Secret secret_half{};
  SessionEpoch epoch;
  std::string transport;  // the one chosen
  friend bool operator==(const HelloReply&, const HelloReply&) = default;
};
// decode -> prefill. The session lives on prefill from here; on decode from HelloConfirmed.
struct HelloConfirm {
  SessionEpoch epoch;
  Nonce echoed_nonce{};
  friend bool operator==(const HelloConfirm&, const HelloConfirm&) = default;
};
// prefill -> decode.
struct HelloConfirmed {
  SessionEpoch epoch;
  friend bool operator==(const HelloConfirmed&, const HelloConfirmed&) = default;
};
// Either way: the hello is refused for good; redialling helps only after a change.
struct HelloRefused {
  Nonce echoed_nonce{};
  Failure reason;
  friend bool operator==(const HelloRefused&, const HelloRefused&) = default;
};

// After a redial within the grace: "I still hold session E" and the answer. proof is
// HMAC(session secret, "resume" | "resumed", epoch, nonce).
struct Resume {
  SessionEpoch epoch;
  Nonce nonce{};
  Proof proof{};
  friend bool operator==(const Resume&, const Resume&) = default;
};
struct Resumed {
  SessionEpoch epoch;
  Nonce echoed_nonce{};
  Proof proof{};
  friend bool operator==(const Resumed&, const Resumed&) = default;
};
// The other side holds no such session, or has ended it: positive evidence.
struct SessionEnded {
  SessionEpoch epoch;
  Failure reason;
  friend bool operator==(const SessionEnded&, const SessionEnded&) = default;
};

// Every room message from decode carries its low-water mark (rule 7).

// decode -> prefill.
struct Grant {
  RoomId room;
  Binding binding;
  AttemptId attempt;
  AttemptId low_water_mark;
  EngineEpoch decode_engine_epoch;
  GrantSlot slot;
  Generation generation;
  std::uint32_t expected_grants = 1;  // decode ranks that grant to this sender
  std::uint32_t decode_prefix_pages = 0;
  std::vector<PageIndex> pages;
  std::int64_t aux_slot = -1;  // -1: this writer sends no aux
  std::vector<std::uint32_t> state_slots;
  friend bool operator==(const Grant&, const Grant&) = default;
};
// prefill -> decode, for transports whose target does not execute the copy: ranges that landed.
struct Progress {
  AttemptId attempt;
  GrantSlot slot;
  Generation generation;
  std::uint32_t first_page = 0;  // position in the grant's page list
  std::uint32_t page_count = 0;
  friend bool operator==(const Progress&, const Progress&) = default;
};
// prefill -> decode: the commit (rule 5). Every ticket of this writer under the grant landed.
struct Done {
  RoomId room;
  Binding binding;
  AttemptId attempt;
  EngineEpoch prefill_engine_epoch;
  GrantSlot slot;
  Generation generation;
  std::uint64_t writes = 0;
  std::uint64_t bytes = 0;
  std::uint32_t pages = 0;  // pages sent, past the prefix
  friend bool operator==(const Done&, const Done&) = default;
};
// decode -> prefill: the attempt succeeded.
struct Consumed {
  RoomId room;
  Binding binding;
  AttemptId attempt;
  AttemptId low_water_mark;
  friend bool operator==(const Consumed&, const Consumed&) = default;
};
// decode -> prefill. attempt 0: before a grant exists, by room and binding.
struct Abort {
  RoomId room;
  Binding binding;
  AttemptId attempt;
  AttemptId low_water_mark;
  GrantSlot slot;
  Generation generation;
  Failure cause;
  friend bool operator==(const Abort&, const Abort&) = default;
};
// prefill -> decode: this writer is quiet for the grant. clean: every ticket was landed, refused or
// reported quiet by the transport (rule 3).
struct Drained {
  AttemptId attempt;
  GrantSlot slot;
  Generation generation;
  bool clean = true;
  friend bool operator==(const Drained&, const Drained&) = default;
};
// prefill -> decode: the sender failed. attempt 0: before a grant came, by room and binding.
struct Failed {
  RoomId room;
  Binding binding;
  AttemptId attempt;
  Failure cause;
  friend bool operator==(const Failed&, const Failed&) = default;
};
// decode -> prefill: the grant is fenced; no write under it will read its source any more.
struct Fenced {
  AttemptId attempt;
  GrantSlot slot;
  Generation generation;
  friend bool operator==(const Fenced&, const Fenced&) = default;
};
// Answer to a message that names an attempt below the low-water mark or another session.
struct Stale {
  AttemptId attempt;
  std::uint8_t kind = 0;  // tag of the message answered
  friend bool operator==(const Stale&, const Stale&) = default;
};
struct Heartbeat {
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};
// Carries nothing but its frame's acknowledgement.
struct Ack {
  friend bool operator==(const Ack&, const Ack&) = default;
};
// Answer to a kind that this version does not know, and how such a message is seen by the core.
struct Unsupported {
  std::uint8_t kind = 0;
  // True: the peer does not know a kind that was sent to it. False: this side does not know what
  // came; it is answered. Two sides must never answer each other's answers, and only answers are
  // encoded.
  bool is_answer = false;
  friend bool operator==(const Unsupported&, const Unsupported&) = default;
};

using Message = std::variant<Hello, HelloReply, HelloConfirm, HelloConfirmed, HelloRefused, Resume,
                             Resumed, SessionEnded, Grant, Progress, Done, Consumed, Abort, Drained,
                             Failed, Fenced, Stale, Heartbeat, Ack, Unsupported>;

std::string_view kind_name(const Message& message);
// The union's tag on the wire.
std::uint8_t kind_tag(const Message& message);

// The unit of the control link. sequence numbers messages[0]; the others follow it one by one.
// sequence 0: none of the messages is numbered, acknowledged or repeated (hellos, resumes,
// heartbeats, acks, stale, unsupported). acknowledge: every message up to and including it was
// processed.
struct Frame {
  SessionEpoch session;
  std::uint64_t sequence = 0;
  std::uint64_t acknowledge = 0;
  std::vector<Message> messages;
  friend bool operator==(const Frame&, const Frame&) = default;
};

}  // namespace kvferry::wire
