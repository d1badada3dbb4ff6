#include "dialect/sglang/stock_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "dialect/sglang/stock_shape.h"
#include "layout/rank_map.h"

namespace kvferry::sglang {
namespace {

// First word of every such key. No Z85 key has a space, so none is taken for one of these.
constexpr std::string_view kMark = "sglang";

// Reads words that one space divides; the first that is wrong ends the reading.
class Words {
 public:
  explicit Words(std::string_view text) : rest_(text) {}

  std::string_view word() {
    const std::size_t end = std::min(rest_.find(' '), rest_.size());
    const std::string_view found = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ok_ = ok_ && !found.empty();
    return found;
  }
  std::uint32_t number(std::uint32_t max = std::numeric_limits<std::uint32_t>::max()) {
    const std::string_view text = word();
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    ok_ = ok_ && error == std::errc{} && end == text.data() + text.size() && value <= max;
    return value;
  }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

Status check_served(const PrefillShape& shape, const RankMapping& mapping, const LayoutShape& own) {
  const auto refuse = [](std::string what) {
    return fail(FailureCode::kLayoutMismatch, std::move(what), FailureWhere::kPeer);
  };
  if (shape.kv_cache_sharding) {
    return refuse("prefill shards its KV cache over its ranks, which is not served");
  }
  if (mapping.cp_ranks.size() > 1) {
    return refuse(fmt::format("the KV of a room lies on {} CP ranks of prefill, served is 1",
                              mapping.cp_ranks.size()));
  }
  if (shape.pp_size != own.rank.pp_size) {
    return refuse(fmt::format("prefill has {} PP ranks and decode {}: served are equal sizes",
                              shape.pp_size, own.rank.pp_size));
  }
  if (decode_shape(own).kv == KvKind::kHeads && own.total_kv_heads % shape.tp_size != 0) {
    return refuse(fmt::format("{} KV heads on {} TP ranks of prefill: served are whole shares",
                              own.total_kv_heads, shape.tp_size));
  }
  return {};
}

LayoutShape layout_of(const PrefillRank& rank, const LayoutShape& own) {
  LayoutShape out = at_tp_place(own, rank.place.tp_rank, rank.shape.tp_size);
  out.rank.dp_rank = rank.dp_rank;
  out.rank.dp_size = std::max(rank.dp_rank + 1, out.rank.dp_size);
  return out;
}

}  // namespace

PeerAddress to_address(const PrefillRank& rank) {
  return {to_text(rank.endpoint),
          fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {:d} {:d}", kMark, rank.endpoint.ip,
                      rank.endpoint.port, rank.registry, rank.dp_rank, rank.place.tp_rank,
                      rank.shape.tp_size, rank.place.cp_rank, rank.shape.cp_size,
                      rank.place.pp_rank, rank.shape.pp_size, rank.page_tokens,
                      rank.shape.dsa_cache_layer_split, rank.shape.kv_cache_sharding)};
}

std::optional<PrefillRank> prefill_rank_of(const PeerAddress& address) {
  Words words(address.public_key);
  if (words.word() != kMark) {
    return std::nullopt;
  }
  PrefillRank rank;
  rank.endpoint.ip = words.word();
  rank.endpoint.port = static_cast<std::uint16_t>(words.number(65'535));
  rank.registry = words.word();
  rank.dp_rank = words.number(65'535);
  rank.place.tp_rank = words.number();
  rank.shape.tp_size = words.number();
  rank.place.cp_rank = words.number();
  rank.shape.cp_size = words.number();
  rank.place.pp_rank = words.number();
  rank.shape.pp_size = words.number();
  rank.page_tokens = words.number();
  rank.shape.dsa_cache_layer_split = words.number(1) != 0;
  rank.shape.kv_cache_sharding = words.number(1) != 0;
  if (!words.at_end() || to_address(rank) != address) {
    return std::nullopt;
  }
  return rank;
}

Result<RankMapping> map_stock(const PrefillShape& shape, const LayoutShape& own) {
  Result<RankMapping> mapping = map_ranks(shape, decode_shape(own));
  if (mapping) {
    if (const Status served = check_served(shape, *mapping, own); !served) {
      return tl::unexpected(served.error());
    }
  }
  return mapping;
}

Result<StockPairing> pair_with(const PrefillRank& rank, const LayoutShape& own) {
  Result<RankMapping> mapping = map_stock(rank.shape, own);
  if (!mapping) {
    return tl::unexpected(mapping.error());
  }
  const auto refuse = [&](std::string what) {
    return fail(FailureCode::kLayoutMismatch, std::move(what), FailureWhere::kPeer,
                to_text(rank.endpoint));
  };
  const std::vector<std::uint32_t> numbers = prefill_rank_ids(rank.shape, *mapping);
  if (std::ranges::find(numbers, rank.number()) == numbers.end()) {
    return refuse(fmt::format("prefill's TP rank {} holds nothing of decode's TP rank {}",
                              rank.place.tp_rank, own.rank.tp_rank));
  }
  if (rank.page_tokens != own.page_size_tokens) {
    return refuse(fmt::format("page_size_tokens: {} here, {} at the peer", own.page_size_tokens,
                              rank.page_tokens));
  }
  StockPairing out;
  out.mapping = std::move(*mapping);
  out.layout = layout_of(rank, own);
  out.is_dummy = out.mapping.is_dummy(rank.place.tp_rank);
  if (out.is_dummy) {
    return out;
  }
  const auto plan = layout::CopyPlan::make(out.layout, own, layout::shared_part(out.layout, own));
  if (!plan) {
    return tl::unexpected(plan.error());
  }
  out.page_slices = plan->page_slices();
  out.aux_slices = plan->aux_slices();
  return out;
}

}  // namespace kvferry::sglang
