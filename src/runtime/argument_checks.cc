#include "runtime/argument_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace kvferry::runtime {
namespace {

tl::unexpected<Failure> refuse(std::string what) {
  return fail(FailureCode::kInvalidArgument, std::move(what));
}

// numbers is changed.
Status check_numbers(std::string_view what, std::vector<std::uint32_t> numbers,
                     std::uint32_t count) {
  std::sort(numbers.begin(), numbers.end());
  if (!numbers.empty() && numbers.back() >= count) {
    return refuse(fmt::format("{} {}: this rank has {}", what, numbers.back(), count));
  }
  const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
  if (twice != numbers.end()) {
    return refuse(fmt::format("{} {} is named twice", what, *twice));
  }
  return {};
}

}  // namespace

ArgumentChecks::ArgumentChecks(const KvArgs& args) : page_size_tokens_(args.page_size_tokens) {
  std::optional<std::uint32_t> pages;
  std::optional<std::uint32_t> states;
  for (const Region& region : args.regions) {
    switch (region.kind) {
      case RegionKind::kKey:
      case RegionKind::kValue:
      case RegionKind::kOther:
        pages = std::min(pages.value_or(region.item_count), region.item_count);
        break;
      case RegionKind::kAux:
        aux_slot_count_ = region.item_count;
        break;
      case RegionKind::kState:
        states = std::min(states.value_or(region.item_count), region.item_count);
        break;
    }
  }
  page_count_ = pages.value_or(0);
  state_slot_count_ = states.value_or(0);
}

Status ArgumentChecks::pages(std::span<const PageIndex> pages) const {
  std::vector<std::uint32_t> numbers;
  numbers.reserve(pages.size());
  for (const PageIndex page : pages) {
    numbers.push_back(page.value());
  }
  return check_numbers("page", std::move(numbers), page_count_);
}

Status ArgumentChecks::aux_slot(std::int64_t slot) const {
  if (slot < -1 || slot >= static_cast<std::int64_t>(aux_slot_count_)) {
    return refuse(fmt::format("aux slot {}: this rank has {}", slot, aux_slot_count_));
  }
  return {};
}

Status ArgumentChecks::state_slots(std::span<const std::uint32_t> slots) const {
  return check_numbers("state slot", {slots.begin(), slots.end()}, state_slot_count_);
}

Result<std::uint32_t> ArgumentChecks::prefix_pages(std::uint32_t tokens) const {
  if (page_size_tokens_ == 0 || tokens % page_size_tokens_ != 0) {
    return refuse(
        fmt::format("decode_prefix_tokens {} is no multiple of the page size of {} tokens", tokens,
                    page_size_tokens_));
  }
  return tokens / page_size_tokens_;
}

Status check_args(const KvArgs& args) {
  for (std::size_t i = 0; i < args.regions.size(); ++i) {
    const Region& region = args.regions[i];
    if (region.base == nullptr) {
      return refuse(fmt::format("region {} ({}) has no memory", i, to_string(region.kind)));
    }
    if (region.item_count != 0 &&
        region.item_bytes > std::numeric_limits<std::size_t>::max() / region.item_count) {
      return refuse(fmt::format("region {} ({}): item_bytes times item_count overflows", i,
                                to_string(region.kind)));
    }
  }
  const RankCoordinates& rank = args.rank;
  if (rank.tp_rank >= rank.tp_size || rank.pp_rank >= rank.pp_size ||
      rank.dp_rank >= rank.dp_size) {
    return refuse(fmt::format("rank tp {} of {}, pp {} of {}, dp {} of {} is outside its engine",
                              rank.tp_rank, rank.tp_size, rank.pp_rank, rank.pp_size, rank.dp_rank,
                              rank.dp_size));
  }
  const bool one_rank = rank.tp_size == 1 && rank.pp_size == 1 && rank.dp_size == 1;
  if (args.engine_epoch == EngineEpoch{} && !one_rank) {
    return refuse("engine_epoch is 0: an engine of several ranks gives all of them one number");
  }
  return {};
}

}  // namespace kvferry::runtime
