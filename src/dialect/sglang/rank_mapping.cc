#include "dialect/sglang/rank_mapping.h"

#include <fmt/format.h>

#include <numeric>

namespace kvferry::sglang {
namespace {

// Above any engine; keeps products of three sizes and lists of ranks small.
constexpr std::uint32_t kMaxGroup = 1'024;
constexpr std::uint32_t kMaxPrefillRanks = 65'536;

std::vector<std::uint32_t> range(std::uint32_t begin, std::uint32_t count) {
  std::vector<std::uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), begin);
  return ranks;
}

Status check_group(std::string_view name, std::uint32_t size) {
  if (size == 0 || size > kMaxGroup) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("{} is {}, expected 1 to {}", name, size, kMaxGroup));
  }
  return {};
}

Status check_shapes(const PrefillShape& prefill, const DecodeShape& decode) {
  const std::pair<std::string_view, std::uint32_t> groups[] = {
      {"prefill's tp_size", prefill.tp_size}, {"prefill's cp_size", prefill.cp_size},
      {"prefill's pp_size", prefill.pp_size}, {"decode's tp_size", decode.tp_size},
      {"decode's cp_size", decode.cp_size},   {"decode's pp_size", decode.pp_size}};
  for (const auto& [name, size] : groups) {
    if (Status status = check_group(name, size); !status) {
      return status;
    }
  }
  if (prefill.tp_size * prefill.cp_size * prefill.pp_size > kMaxPrefillRanks) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("prefill has {} x {} x {} ranks, expected at most {}", prefill.tp_size,
                            prefill.cp_size, prefill.pp_size, kMaxPrefillRanks));
  }
  if (decode.pp_rank >= decode.pp_size) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("decode's pp_rank is {}, expected less than its pp_size of {}",
                            decode.pp_rank, decode.pp_size));
  }
  return {};
}

Status map_tp(const PrefillShape& prefill, const DecodeShape& decode, RankMapping& out) {
  const std::uint32_t from = prefill.tp_size;
  const std::uint32_t to = decode.tp_size;
  const std::uint32_t rank = decode.engine_rank % to;
  if (decode.kv == KvKind::kLatents && prefill.kv_cache_sharding && prefill.cp_size == 1) {
    if (from != to) {
      return fail(FailureCode::kLayoutMismatch,
                  fmt::format("prefill shards its KV cache over {} TP ranks, decode has {}: "
                              "sharding needs equal TP sizes",
                              from, to));
    }
    out.tp_ranks = range(0, from);
    out.decode_ranks = to;
    out.prefill_successes = from;
    return {};
  }
  if (from % to != 0 && to % from != 0) {
    return fail(FailureCode::kLayoutMismatch,
                fmt::format("prefill has {} TP ranks and decode {}: neither size divides the other",
                            from, to));
  }
  if (to >= from) {
    out.real_tp_rank = rank / (to / from);
    out.tp_ranks = {*out.real_tp_rank};
    out.decode_ranks = to / from;
    return {};
  }
  const std::uint32_t share = from / to;
  out.tp_ranks = range(rank * share, share);
  out.real_tp_rank = out.tp_ranks.front();
  out.others_are_dummies = decode.kv == KvKind::kLatents;
  out.prefill_successes = out.others_are_dummies ? 1 : share;
  return {};
}

Status map_cp(const PrefillShape& prefill, const DecodeShape& decode, RankMapping& out) {
  if (decode.cp_size != 1) {
    return fail(FailureCode::kLayoutMismatch,
                fmt::format("decode has {} CP ranks (prefill {}): SGLang's decode has 1",
                            decode.cp_size, prefill.cp_size));
  }
  const bool all =
      decode.pull_from_all_cp_ranks || prefill.dsa_cache_layer_split || prefill.kv_cache_sharding;
  out.cp_ranks = range(0, all ? prefill.cp_size : 1);
  out.prefill_successes *= all ? prefill.cp_size : 1;
  return {};
}

Status map_pp(const PrefillShape& prefill, const DecodeShape& decode, RankMapping& out) {
  if (decode.pp_size == prefill.pp_size) {
    out.pp_ranks = {decode.pp_rank};
    return {};
  }
  if (decode.pp_size != 1) {
    return fail(FailureCode::kLayoutMismatch,
                fmt::format("prefill has {} PP ranks and decode {}: decode's are as many, or 1",
                            prefill.pp_size, decode.pp_size));
  }
  out.pp_ranks = range(0, prefill.pp_size);
  out.prefill_successes *= prefill.pp_size;
  return {};
}

}  // namespace

Result<RankMapping> map_ranks(const PrefillShape& prefill, const DecodeShape& decode) {
  RankMapping out;
  Status status = check_shapes(prefill, decode);
  for (const auto step : {map_tp, map_cp, map_pp}) {
    if (status) {
      status = step(prefill, decode, out);
    }
  }
  if (!status) {
    return tl::unexpected(status.error());
  }
  return out;
}

std::uint32_t prefill_rank_id(const PrefillShape& shape, const PrefillCoordinates& rank) {
  return rank.tp_rank * (shape.pp_size * shape.cp_size) + rank.pp_rank * shape.cp_size +
         rank.cp_rank;
}

std::vector<std::uint32_t> prefill_rank_ids(const PrefillShape& shape, const RankMapping& mapping) {
  std::vector<std::uint32_t> ids;
  for (const std::uint32_t tp : mapping.tp_ranks) {
    for (const std::uint32_t pp : mapping.pp_ranks) {
      for (const std::uint32_t cp : mapping.cp_ranks) {
        ids.push_back(prefill_rank_id(shape, {tp, pp, cp}));
      }
    }
  }
  return ids;
}

}  // namespace kvferry::sglang
