// Everything that can happen to the protocol, as past facts. Producers are the API (rooms), the
// control link (peers and frames), the bootstrap client and the transport's threads; all reach the
// core through one mailbox, in batches. An event owns what it carries.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/peer_id.h"
#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"
#include "layout/write.h"
#include "wire/messages.h"

namespace kvferry::core {

// One KvReceiver of this process; its attempt is numbered by the core.
using ReceiverId = StrongId<struct ReceiverTag>;

// --- decode API ---
struct ReceiverOpened {
  ReceiverId receiver;
  RoomId room;
  Binding binding;
};
struct PrefillNamed {  // KvReceiver::init
  ReceiverId receiver;
  std::string bootstrap_address;
  std::string instance;
  std::uint32_t dp_rank = 0;
};
struct MetadataGiven {  // KvReceiver::send_metadata
  ReceiverId receiver;
  std::vector<PageIndex> pages;
  std::int64_t aux_slot = -1;
  std::vector<std::uint32_t> state_slots;
  std::uint32_t decode_prefix_pages = 0;
  std::uint32_t expected_grants = 1;
};
// The status cell is Failed already: the caller won the compare-and-swap.
struct ReceiverAborted {
  ReceiverId receiver;
  Failure cause;
};
// The handle is gone. unread_success: the cell held a Success that the caller never read, so its
// pages go back through ReleasePages.
struct ReceiverCleared {
  ReceiverId receiver;
  bool unread_success = false;
};

// --- prefill API ---
struct SenderOpened {
  SenderId sender;
  RoomId room;
  Binding binding;
};
struct SenderInitialized {  // KvSender::init
  SenderId sender;
  std::uint32_t page_count = 0;
  std::int64_t aux_slot = -1;
};
struct ChunkGiven {  // KvSender::send
  SenderId sender;
  std::vector<PageIndex> pages;
  std::vector<std::uint32_t> state_slots;
};
struct SenderAborted {
  SenderId sender;
  Failure cause;
};
struct SenderCleared {
  SenderId sender;
};

// --- bootstrap ---
struct PeerRow {
  PeerAddress address;
  std::string instance;
  RankCoordinates rank;
  EngineEpoch engine_epoch;
};
// Answer to ResolvePrefill: all registered ranks of the replica asked for.
struct PrefillResolved {
  ReceiverId receiver;
  Result<std::vector<PeerRow>> rows;
};
// KvManager::keep_paired: the prefill ranks that the registry lists now. Ranks no longer listed are
// let go once their session ends.
struct PairsWanted {
  std::vector<PeerRow> rows;
};

// --- control link ---
struct LinkUp {
  PeerId peer;
};
struct LinkDown {
  // kRefused and kWrongKey are positive evidence that the peer's process is gone (rule 7). kDenied:
  // it lives and does not allow our key, perhaps because it has not heard of us yet.
  enum class Why : std::uint8_t { kClosed, kRefused, kWrongKey, kDenied };
  PeerId peer;
  Why why = Why::kClosed;
};
struct FrameArrived {
  std::string sender_key;  // proven by CURVE; empty in plain mode
  wire::Frame frame;
};

// --- transport ---
struct WritesCompleted {
  std::vector<layout::WriteCompletion> completions;
};
struct WritesQuiet {
  SessionEpoch session;
  std::vector<TicketId> tickets;
};
struct WritesLanded {
  std::vector<layout::Landing> landings;
};
struct WriteTorn {
  layout::Landing landing;
  std::string how = "stopped in the middle";  // follows on "the write"
};
// The transport has proven that no write of this ended session will land any more. Only from
// transports whose teardown is proven (design: those without a local fence).
struct SessionTornDown {
  SessionEpoch session;
};
struct FenceCompleted {
  GrantId grant;
};
// The session's data path took a test page, or did not.
struct PathTested {
  SessionEpoch session;
  Status result;
};
struct LaneFailed {
  SessionEpoch session;
  Failure cause;
  // No lane has been up for so long that none will come: the session ends with this cause.
  bool all_lanes = false;
};

// The manager stops: every room fails with this cause, every session ends.
struct StopRequested {
  Failure cause;
};

using Event =
    std::variant<ReceiverOpened, PrefillNamed, MetadataGiven, ReceiverAborted, ReceiverCleared,
                 SenderOpened, SenderInitialized, ChunkGiven, SenderAborted, SenderCleared,
                 PrefillResolved, PairsWanted, LinkUp, LinkDown, FrameArrived, WritesCompleted,
                 WritesQuiet, WritesLanded, WriteTorn, FenceCompleted, SessionTornDown, PathTested,
                 LaneFailed, StopRequested>;

}  // namespace kvferry::core
