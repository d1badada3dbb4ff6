// Which prefill ranks a decode rank asks, as SGLang 0.5.23 computes it on decode: once for each
// prefill server, from sizes alone, so that every decode rank of an engine comes to fitting
// answers. Pure. SGLang divides without looking whether sizes divide; here they must.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvferry/status.h"

namespace kvferry::sglang {

// Sizes of a prefill server's groups, from its registry. Attention groups throughout.
struct PrefillShape {
  std::uint32_t tp_size = 1;
  std::uint32_t cp_size = 1;  // context parallelism
  std::uint32_t pp_size = 1;
  bool dsa_cache_layer_split = false;  // CP ranks hold different layers
  bool kv_cache_sharding = false;      // ranks hold different pages
  friend bool operator==(const PrefillShape&, const PrefillShape&) = default;
};

// How attention keeps its KV: heads (MHA, GQA) are spread over TP ranks, latents (MLA) are the same
// on all of them.
enum class KvKind : std::uint8_t { kHeads, kLatents, kHybridLatents };

struct DecodeShape {
  std::uint32_t tp_size = 1;
  std::uint32_t cp_size = 1;  // SGLang takes 1 only
  std::uint32_t pp_size = 1;
  std::uint32_t engine_rank = 0;  // its TP rank is this number modulo tp_size
  std::uint32_t pp_rank = 0;
  KvKind kv = KvKind::kHeads;
  // SGLANG_DISAGGREGATION_ALL_CP_RANKS_TRANSFER, or a decode pool that needs it (hybrid latents).
  bool pull_from_all_cp_ranks = false;
};

struct RankMapping {
  std::vector<std::uint32_t> tp_ranks;
  std::vector<std::uint32_t> cp_ranks;
  std::vector<std::uint32_t> pp_ranks;
  // The TP rank that sends. None: all of tp_ranks do, with shares of the pages.
  std::optional<std::uint32_t> real_tp_rank;
  bool others_are_dummies = false;  // TP ranks but the real one only have to know the room
  // How many decode ranks send metadata to each of these prefill ranks.
  std::uint32_t decode_ranks = 1;
  // Of how many prefill ranks a Success is awaited.
  std::uint32_t prefill_successes = 1;

  bool is_dummy(std::uint32_t tp_rank) const {
    return others_are_dummies && real_tp_rank && tp_rank != *real_tp_rank;
  }
  friend bool operator==(const RankMapping&, const RankMapping&) = default;
};

// Fails with kInvalidArgument for sizes that can't be (0, a rank beyond its group), and with
// kLayoutMismatch for two engines that SGLang can't pair; the text has both sizes.
Result<RankMapping> map_ranks(const PrefillShape& prefill, const DecodeShape& decode);

// A prefill rank's number in statuses and acknowledgements; from 0, no two alike in one server.
struct PrefillCoordinates {
  std::uint32_t tp_rank = 0;
  std::uint32_t pp_rank = 0;
  std::uint32_t cp_rank = 0;
  friend bool operator==(const PrefillCoordinates&, const PrefillCoordinates&) = default;
};
std::uint32_t prefill_rank_id(const PrefillShape& shape, const PrefillCoordinates& rank);

// The numbers of all ranks that hold a part of this decode rank's KV: whom an acknowledgement is
// awaited from. With dummies, which acknowledge, too.
std::vector<std::uint32_t> prefill_rank_ids(const PrefillShape& shape, const RankMapping& mapping);

}  // namespace kvferry::sglang
