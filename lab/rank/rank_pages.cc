#include "lab/rank/rank_pages.h"

#include <fmt/format.h>

#include <cstring>

namespace kvferry::lab {
namespace {

constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kHeads = 1;

}  // namespace

Result<RankPages> RankPages::make(std::uint32_t pages, std::uint32_t page_bytes,
                                  std::uint32_t aux_slots) {
  constexpr std::uint32_t kUnit = kComponents * kPageTokens * kHeads * sizeof(std::uint64_t);
  if (page_bytes == 0 || page_bytes % kUnit != 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("page_bytes is {}, must be a multiple of {}", page_bytes, kUnit));
  }
  const std::uint64_t bytes =
      std::uint64_t{pages} * page_bytes + std::uint64_t{aux_slots} * kAuxRecordBytes;
  auto memory = SharedPool::create(bytes);
  if (!memory) return tl::unexpected(memory.error());
  RankPages made(std::move(*memory));
  made.pages_ = pages;
  made.item_bytes_ = page_bytes / kComponents;
  made.aux_slots_ = aux_slots;
  for (std::uint32_t page = 0; page < pages; ++page) {
    made.free_.insert(page);
    made.paint(PageIndex(page), kReturned);
  }
  for (std::uint32_t slot = 0; slot < aux_slots; ++slot) made.free_aux_.insert(slot);
  return made;
}

KvArgs RankPages::args() const {
  KvArgs args;
  args.model_fingerprint = "drill";
  args.page_size_tokens = kPageTokens;
  args.total_layers = 1;
  args.total_kv_heads = kHeads;
  args.head_dim = item_bytes_ / kPageTokens / kHeads;
  args.dtype = DType::kU8;
  args.layers = {0, 1};
  args.heads = {0, kHeads};
  std::uint64_t offset = 0;
  for (const RegionKind kind : {RegionKind::kKey, RegionKind::kValue, RegionKind::kAux}) {
    Region region;
    region.kind = kind;
    region.base = memory_.base() + offset;
    region.item_bytes = kind == RegionKind::kAux ? kAuxRecordBytes : item_bytes_;
    region.item_count = kind == RegionKind::kAux ? aux_slots_ : pages_;
    region.memory_fd = memory_.fd();
    region.memory_fd_offset = offset;
    offset += region.item_bytes * region.item_count;
    args.regions.push_back(region);
  }
  return args;
}

std::span<std::byte> RankPages::item(std::uint32_t component, PageIndex page) const {
  const std::uint64_t region = std::uint64_t{component} * pages_ * item_bytes_;
  return {memory_.base() + region + std::uint64_t{page.value()} * item_bytes_, item_bytes_};
}

void RankPages::paint(PageIndex page, std::byte with) {
  for (std::uint32_t component = 0; component < kComponents; ++component) {
    const auto bytes = item(component, page);
    std::memset(bytes.data(), std::to_integer<int>(with), bytes.size());
  }
}

void RankPages::inspect(PageIndex page) {
  std::uint64_t bytes = 0;
  for (std::uint32_t component = 0; component < kComponents; ++component) {
    bytes += unpainted_bytes(item(component, page), kReturned);
  }
  if (bytes == 0) return;
  spoiled_[page.value()] += bytes;
  paint(page, kReturned);
}

std::optional<std::vector<PageIndex>> RankPages::take(std::uint32_t count, std::uint32_t stride,
                                                      bool bare) {
  std::vector<PageIndex> taken;
  std::uint64_t next = 0;
  for (const std::uint32_t page : free_) {
    if (taken.size() == count) break;
    if (page < next) continue;
    taken.emplace_back(page);
    next = std::uint64_t{page} + stride;
  }
  if (taken.size() < count) return std::nullopt;
  for (const PageIndex page : taken) {
    if (!bare) {
      inspect(page);
      paint(page, kGranted);
    }
    free_.erase(page.value());
  }
  return taken;
}

void RankPages::give_back(std::span<const PageIndex> pages, bool bare) {
  for (const PageIndex page : pages) {
    if (!bare) paint(page, kReturned);
    free_.insert(page.value());
  }
}

std::optional<std::uint32_t> RankPages::take_aux() {
  if (free_aux_.empty()) return std::nullopt;
  return free_aux_.extract(free_aux_.begin()).value();
}

void RankPages::give_back_aux(std::int64_t slot) {
  if (slot >= 0) free_aux_.insert(static_cast<std::uint32_t>(slot));
}

void RankPages::fill(std::span<const PageIndex> pages, RoomId room, Binding binding) {
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    for (std::uint32_t component = 0; component < kComponents; ++component) {
      fill_words(item(component, pages[i]), PageName{room, binding, component, i});
    }
  }
}

std::uint64_t RankPages::wrong(std::span<const PageIndex> pages, RoomId room,
                               Binding binding) const {
  std::uint64_t wrong = 0;
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    for (std::uint32_t component = 0; component < kComponents; ++component) {
      wrong += wrong_bytes(item(component, pages[i]), PageName{room, binding, component, i});
    }
  }
  return wrong;
}

std::map<std::uint32_t, std::uint64_t> RankPages::take_spoiled() {
  for (const std::uint32_t page : free_) inspect(PageIndex(page));
  return std::exchange(spoiled_, {});
}

}  // namespace kvferry::lab
