// What a PrefillTranslator remembers of one registration and its rooms. Private to it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "dialect/sglang/prefill_translator.h"

namespace kvferry::sglang {

inline constexpr std::string_view kVirtualKeyPrefix = "sglang-";

// One room of one decode rank, from its metadata until nothing is owed for it any more.
struct PrefillTranslator::Attempt {
  AttemptId id;
  GrantSlot slot;
  Generation generation;
  bool is_granted = false;  // else it waits for the session to be live
  RoomTarget target;
  std::optional<std::uint32_t> aux_index;
  std::optional<std::uint64_t> abort_generation;  // an ABORT that wants an acknowledgement
  bool status_sent = false;
};

struct PrefillTranslator::Session {
  DecodeRank rank;
  LayoutShape layout;          // of the decode rank, if it is served
  wire::TransportOffer offer;  // how its memory is reached
  std::string key;             // stands for the CURVE key of one life of the peer
  wire::Nonce nonce{};
  std::optional<std::string> refused;  // why no room of this session is served, for good
  bool over = false;                   // the core ended it; the next metadata greets again
  std::optional<PeerId> peer;
  SessionEpoch epoch;
  bool live = false;
  std::uint64_t next_sequence = 1;
  std::uint64_t heard_through = 0;
  std::map<RoomId, Attempt> attempts;
  std::set<RoomId> early_aborts;  // of rooms without an attempt, until the session is live
  std::set<RoomId> succeeded;     // the last of them, in the order of
  std::deque<RoomId> succeeded_order;
  AttemptId next_attempt{1};
  Generation next_generation{1};
  std::set<GrantSlot> free_slots;
  GrantSlot next_slot{};
};

}  // namespace kvferry::sglang
