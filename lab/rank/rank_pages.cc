#include "lab/rank/rank_pages.h"

#include <fmt/format.h>

#include <cstring>

#include "lab/rank/unwatched_writes.h"

namespace kvferry::lab {
namespace {

constexpr std::uint32_t kPageTokens = 16;
constexpr std::uint32_t kKinds = 2;  // keys and values

Status check(std::uint32_t page_bytes, const PagePart& part) {
  const RankCoordinates& rank = part.rank;
  if (rank.pp_size == 0 || part.layers % rank.pp_size != 0 || rank.tp_size == 0 ||
      part.heads % rank.tp_size != 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("{} layers and {} heads can't be shared out to {} pp and {} tp ranks",
                            part.layers, part.heads, rank.pp_size, rank.tp_size));
  }
  const std::uint64_t unit =
      sizeof(std::uint64_t) * kKinds * kPageTokens * part.layers * part.heads;
  if (page_bytes == 0 || page_bytes % unit != 0) {
    return fail(FailureCode::kInvalidArgument,
                fmt::format("page_bytes is {}, must be a multiple of {}", page_bytes, unit));
  }
  return {};
}

}  // namespace

Result<RankPages> RankPages::make(std::uint32_t pages, std::uint32_t page_bytes,
                                  std::uint32_t aux_slots, const PagePart& part) {
  if (const Status fits = check(page_bytes, part); !fits) return tl::unexpected(fits.error());
  const std::uint32_t own_bytes = page_bytes / part.rank.pp_size / part.rank.tp_size;
  const std::uint64_t bytes =
      std::uint64_t{pages} * own_bytes + std::uint64_t{aux_slots} * kAuxRecordBytes;
  auto memory = SharedPool::create(bytes);
  if (!memory) return tl::unexpected(memory.error());
  RankPages made(std::move(*memory), part);
  made.pages_ = pages;
  made.item_bytes_ = own_bytes / made.components();
  made.aux_slots_ = aux_slots;
  for (std::uint32_t page = 0; page < pages; ++page) {
    made.free_.insert(page);
    made.paint(PageIndex(page), kReturned);
  }
  for (std::uint32_t slot = 0; slot < aux_slots; ++slot) made.free_aux_.insert(slot);
  return made;
}

KvArgs RankPages::args() const {
  const std::uint32_t first_layer = part_.rank.pp_rank * own_layers();
  const std::uint32_t first_head = part_.rank.tp_rank * own_heads();
  KvArgs args;
  args.role = part_.role;
  args.rank = part_.rank;
  args.model_fingerprint = "drill";
  args.page_size_tokens = kPageTokens;
  args.total_layers = part_.layers;
  args.total_kv_heads = part_.heads;
  args.head_dim = item_bytes_ / kPageTokens / own_heads();
  args.dtype = DType::kU8;
  args.layers = {first_layer, first_layer + own_layers()};
  args.heads = {first_head, first_head + own_heads()};
  std::uint64_t offset = 0;
  const auto add = [&](RegionKind kind, std::uint32_t layer) {
    Region region;
    region.kind = kind;
    region.layer = layer;
    region.base = memory_.base() + offset;
    region.item_bytes = kind == RegionKind::kAux ? kAuxRecordBytes : item_bytes_;
    region.item_count = kind == RegionKind::kAux ? aux_slots_ : pages_;
    region.memory_fd = memory_.fd();
    region.memory_fd_offset = offset;
    offset += region.item_bytes * region.item_count;
    args.regions.push_back(region);
  };
  for (std::uint32_t layer = args.layers.begin; layer < args.layers.end; ++layer) {
    add(RegionKind::kKey, layer);
    add(RegionKind::kValue, layer);
  }
  add(RegionKind::kAux, 0);
  return args;
}

std::span<std::byte> RankPages::item(std::uint32_t component, PageIndex page) const {
  const std::uint64_t region = std::uint64_t{component} * pages_ * item_bytes_;
  return {memory_.base() + region + std::uint64_t{page.value()} * item_bytes_, item_bytes_};
}

void RankPages::paint(PageIndex page, std::byte with) {
  const UnwatchedWrites unwatched(is_source());
  for (std::uint32_t component = 0; component < components(); ++component) {
    const auto bytes = item(component, page);
    std::memset(bytes.data(), std::to_integer<int>(with), bytes.size());
  }
}

void RankPages::inspect(PageIndex page) {
  std::uint64_t bytes = 0;
  for (std::uint32_t component = 0; component < components(); ++component) {
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

// Items are [token][head][dim]: with a part of the heads each token's is a stretch of its own.
template <typename Visit>
void RankPages::for_each_stretch(std::uint32_t component, PageIndex page, Visit visit) const {
  const auto bytes = item(component, page);
  const std::size_t own_row = bytes.size() / kPageTokens;
  const std::size_t whole_row = own_row * part_.rank.tp_size;
  const bool is_whole = part_.rank.tp_size == 1;
  for (std::uint32_t token = 0; token < (is_whole ? 1 : kPageTokens); ++token) {
    visit(is_whole ? bytes : bytes.subspan(token * own_row, own_row),
          token * whole_row + part_.rank.tp_rank * own_row);
  }
}

void RankPages::fill(std::span<const PageIndex> pages, RoomId room, Binding binding) {
  const UnwatchedWrites unwatched(is_source());
  const std::uint32_t first = part_.rank.pp_rank * components();
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    for (std::uint32_t component = 0; component < components(); ++component) {
      for_each_stretch(component, pages[i], [&](std::span<std::byte> bytes, std::uint64_t offset) {
        fill_words(bytes, PageName{room, binding, first + component, i, offset});
      });
    }
  }
}

template <typename Count>
std::uint64_t RankPages::add_up(std::span<const PageIndex> pages, RoomId room, Binding binding,
                                Count count) const {
  const std::uint32_t first = part_.rank.pp_rank * components();
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    for (std::uint32_t component = 0; component < components(); ++component) {
      for_each_stretch(component, pages[i], [&](std::span<std::byte> bytes, std::uint64_t offset) {
        sum += count(bytes, PageName{room, binding, first + component, i, offset});
      });
    }
  }
  return sum;
}

std::uint64_t RankPages::wrong(std::span<const PageIndex> pages, RoomId room,
                               Binding binding) const {
  return add_up(pages, room, binding, [](std::span<const std::byte> bytes, const PageName& name) {
    return wrong_bytes(bytes, name);
  });
}

std::uint64_t RankPages::foreign(std::span<const PageIndex> pages, RoomId room,
                                 Binding binding) const {
  return add_up(pages, room, binding, [](std::span<const std::byte> bytes, const PageName& name) {
    return foreign_bytes(bytes, name, kGranted);
  });
}

std::map<std::uint32_t, std::uint64_t> RankPages::take_spoiled() {
  for (const std::uint32_t page : free_) inspect(PageIndex(page));
  return std::exchange(spoiled_, {});
}

}  // namespace kvferry::lab
