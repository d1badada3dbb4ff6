#include "serve/page_pool.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace kvferry::serve {
namespace {

constexpr std::size_t kAlignment = 4096;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

PagePool::PagePool(std::uint32_t page_count, std::uint32_t aux_slots,
                   std::uint32_t page_size_tokens)
    : page_count_(page_count),
      page_size_tokens_(page_size_tokens),
      taken_(page_count),
      aux_taken_(aux_slots),
      free_pages_(page_count),
      free_aux_(aux_slots) {
  for (std::uint32_t index = 0; index < page_count; ++index) {
    free_list_.push(index);
  }
  for (std::uint32_t index = 0; index < aux_slots; ++index) {
    free_aux_list_.push(index);
  }
}

Result<std::unique_ptr<PagePool>> PagePool::create(const EngineInfo& engine,
                                                   std::uint32_t page_count,
                                                   std::uint32_t aux_slots, Memory memory) {
  if (page_count == 0 || aux_slots == 0) {
    return fail(FailureCode::kInvalidArgument,
                "a page pool needs at least one page and one aux slot");
  }
  const std::uint64_t page_bytes = std::uint64_t{engine.page_size_tokens} * engine.kv_heads *
                                   engine.head_dim * dtype_bytes(engine.dtype);
  const std::size_t region_bytes = aligned(page_bytes * page_count);
  const std::size_t aux_bytes = aligned(std::size_t{kAuxRecordBytes} * aux_slots);
  std::unique_ptr<PagePool> pool(new PagePool(page_count, aux_slots, engine.page_size_tokens));
  pool->memory_bytes_ = region_bytes * 2 * engine.layers + aux_bytes;
  if (auto mapped = pool->map(memory); !mapped) return tl::unexpected(mapped.error());
  std::byte* at = pool->base();
  const auto add = [&](RegionKind kind, std::uint32_t layer, std::uint64_t item_bytes,
                       std::uint32_t items) {
    Region region{kind, layer, at, item_bytes, items, MemoryKind::kHost, -1, 0};
    if (pool->shared_) {
      region.memory_fd = pool->shared_->fd();
      region.memory_fd_offset = static_cast<std::uint64_t>(at - pool->base());
    }
    pool->regions_.push_back(region);
  };
  for (const RegionKind kind : {RegionKind::kKey, RegionKind::kValue}) {
    for (std::uint32_t layer = 0; layer < engine.layers; ++layer, at += region_bytes) {
      add(kind, layer, page_bytes, page_count);
    }
  }
  add(RegionKind::kAux, 0, kAuxRecordBytes, aux_slots);
  return pool;
}

Status PagePool::map(Memory memory) {
  if (memory == Memory::kShared) {
    auto shared = SharedPool::create(memory_bytes_);
    if (!shared) return tl::unexpected(shared.error());
    shared_ = std::move(*shared);
    return {};
  }
  void* mapped = mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return fail(FailureCode::kOperatingSystem,
                fmt::format("mmap of {} bytes for {} pages: {}; lower the number of pool pages",
                            memory_bytes_, page_count_, std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(mapped);
  return {};
}

PagePool::~PagePool() {
  if (memory_ != nullptr) {
    munmap(memory_, memory_bytes_);
  }
}

std::vector<std::byte*> PagePool::page(PageIndex index) const {
  std::vector<std::byte*> pointers;
  pointers.reserve(regions_.size() - 1);
  for (std::size_t region = 0; region + 1 < regions_.size(); ++region) {
    pointers.push_back(regions_[region].base + regions_[region].item_bytes * index.value());
  }
  return pointers;
}

std::optional<std::vector<PageIndex>> PagePool::take_pages(std::uint32_t count) {
  if (count > free_list_.size()) {
    return std::nullopt;
  }
  std::vector<PageIndex> pages;
  pages.reserve(count);
  for (std::uint32_t index = 0; index < count; ++index) {
    pages.emplace_back(free_list_.top());
    taken_[free_list_.top()] = true;
    free_list_.pop();
  }
  free_pages_ = static_cast<std::uint32_t>(free_list_.size());
  taken_total_ += count;
  return pages;
}

std::optional<std::uint32_t> PagePool::take_aux() {
  if (free_aux_list_.empty()) {
    return std::nullopt;
  }
  const std::uint32_t slot = free_aux_list_.top();
  free_aux_list_.pop();
  aux_taken_[slot] = true;
  free_aux_ = static_cast<std::uint32_t>(free_aux_list_.size());
  return slot;
}

void PagePool::give_back(std::span<const PageIndex> pages) {
  for (const PageIndex page : pages) {
    if (page.value() >= page_count_ || !taken_[page.value()]) {
      ++double_returns_;
      continue;
    }
    taken_[page.value()] = false;
    free_list_.push(page.value());
    ++returned_total_;
  }
  free_pages_ = static_cast<std::uint32_t>(free_list_.size());
}

void PagePool::give_back_aux(std::uint32_t slot) {
  if (slot >= aux_taken_.size() || !aux_taken_[slot]) {
    ++double_returns_;
    return;
  }
  aux_taken_[slot] = false;
  free_aux_list_.push(slot);
  free_aux_ = static_cast<std::uint32_t>(free_aux_list_.size());
}

}  // namespace kvferry::serve
