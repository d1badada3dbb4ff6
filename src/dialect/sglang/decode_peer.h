// One stock prefill rank that the core of a decode rank has dialled, and its PULL socket. Private
// to the decode translator, whose two source files share it.
#pragma once

#include <set>

#include "dialect/sglang/decode_translator.h"

namespace kvferry::sglang {

// SGLang knows no launches of an engine: whatever answers at one registry counts as one.
inline constexpr EngineEpoch kEngineEpoch{1};

inline Failure at_peer(FailureCode code, std::string what, const RankEndpoint& endpoint) {
  return Failure{code, FailureWhere::kPeer, std::move(what), to_text(endpoint), -1};
}

struct DecodeTranslator::Peer {
  PeerId id;
  PeerAddress address;
  PrefillRank rank;
  Result<StockPairing> pairing;  // or why there can be none
  bool is_up = false;            // told so

  wire::Nonce hello_nonce{};
  SessionEpoch epoch;
  bool is_live = false;
  std::uint64_t next_sequence = 1;
  std::uint64_t heard_through = 0;
  // Attempts whose Abort came before their Grant, which waited behind other messages. Down to the
  // low-water mark, below which no Grant comes.
  std::set<AttemptId> aborted;
};

struct DecodeTranslator::Endpoint {
  bool is_up = false;
  std::size_t users = 0;  // peers, and targets that something has still to be said to
};

}  // namespace kvferry::sglang
