#include "dialect/sglang/sglang_registry.h"

#include <utility>

namespace kvferry::sglang {
namespace {

std::uint32_t dp_size_of(const RankRow& row) {
  return row.system_dp.size == 1 ? row.dp.size : row.system_dp.size;
}

std::uint32_t dp_rank_of_row(const RankRow& row) {
  return row.system_dp.size == 1 ? row.dp.rank : row.system_dp.rank;
}

}  // namespace

std::uint64_t SglangRegistry::expected_ranks() const {
  return std::uint64_t{topology_->dp_size} * topology_->cp_size * topology_->tp_size *
         topology_->pp_size;
}

bool SglangRegistry::is_ready() const { return topology_ && ranks_.size() >= expected_ranks(); }

void SglangRegistry::take_first(const RankRow& row) {
  topology_ = Topology{row.tp.size,           row.cp.size,
                       dp_size_of(row),       row.pp.size,
                       row.page_tokens,       row.kv_cache_dtype,
                       row.kv_layout,         row.spec_layout,
                       row.follows_room,      row.dsa_cache_layer_split,
                       row.kv_cache_sharding, row.http_port,
                       row.allocation_policy};
}

SglangRegistry::Put SglangRegistry::put(const RankRow& row) {
  std::uint64_t product = 1;
  for (const std::uint32_t size : {row.tp.size, row.cp.size, row.pp.size, dp_size_of(row)}) {
    if (size == 0 || size > limits_.max_group) {
      return Put::kImpossible;
    }
    product *= size;
    if (product > limits_.max_ranks) {
      return Put::kImpossible;
    }
  }
  if (!topology_) {
    take_first(row);
  } else if (topology_->spec_layout != row.spec_layout) {
    return Put::kLayout;
  } else if (topology_->allocation_policy != row.allocation_policy) {
    return Put::kPolicy;
  }
  // What a first row left open, a later one may say.
  if (!topology_->kv_cache_dtype) topology_->kv_cache_dtype = row.kv_cache_dtype;
  if (!topology_->kv_layout) topology_->kv_layout = row.kv_layout;
  if (!topology_->http_port) topology_->http_port = row.http_port;

  const std::uint32_t dp_rank = dp_rank_of_row(row);
  if (dp_rank >= topology_->dp_size || row.cp.rank >= topology_->cp_size ||
      row.tp.rank >= topology_->tp_size || row.pp.rank >= topology_->pp_size) {
    return Put::kOutside;
  }
  ranks_[RankKey{dp_rank, row.cp.rank, row.tp.rank, row.pp.rank}] = RankAddress{row.ip, row.port};
  const bool same = topology_->tp_size == row.tp.size && topology_->cp_size == row.cp.size &&
                    topology_->dp_size == dp_size_of(row) && topology_->pp_size == row.pp.size &&
                    topology_->page_tokens == row.page_tokens;
  return same ? Put::kStored : Put::kOtherSizes;
}

const RankAddress* SglangRegistry::find(const RankKey& key) const {
  const auto at = ranks_.find(key);
  return at == ranks_.end() ? nullptr : &at->second;
}

void SglangRegistry::expire_rooms(Instant now) {
  const Duration period = std::chrono::seconds(limits_.room_lifetime_s);
  if (now - period_begin_ < period) {
    return;
  }
  // After two periods without a call nothing of the last one is young, either.
  old_ = now - period_begin_ < 2 * period ? std::exchange(young_, {})
                                          : std::unordered_map<std::int64_t, std::int64_t>();
  young_.clear();
  period_begin_ = now;
}

bool SglangRegistry::put_room(std::int64_t room, std::int64_t dp_rank, Instant now) {
  expire_rooms(now);
  if (young_.size() + old_.size() >= limits_.max_rooms && !young_.contains(room)) {
    return false;
  }
  young_[room] = dp_rank;
  return true;
}

std::optional<std::int64_t> SglangRegistry::dp_rank_of(std::int64_t room, Instant now) {
  expire_rooms(now);
  for (const auto* rooms : {&young_, &old_}) {
    if (const auto at = rooms->find(room); at != rooms->end()) {
      return at->second;
    }
  }
  return std::nullopt;
}

}  // namespace kvferry::sglang
