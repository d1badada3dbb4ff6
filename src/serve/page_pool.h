// Registered memory of one server: KV pages, aux slots, and who has them. The lowest free index
// goes first, which keeps the touched memory small and reuses pages early.
//
// Threads: page pointers and shape from any thread, the rest from the scheduler's thread; counts
// are atomic, so metrics may read them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "kvferry/kv_args.h"
#include "kvferry/shared_pool.h"
#include "kvferry/status.h"
#include "serve/engine.h"

namespace kvferry::serve {

class PagePool {
 public:
  // Shared memory can be read by a decode server of the same host (kvferry/shared_pool.h), so that
  // is what a prefill server's pages lie in.
  enum class Memory { kPrivate, kShared };

  // Maps memory for pages of the engine's shape and for aux slots; touched only when used.
  static Result<std::unique_ptr<PagePool>> create(const EngineInfo& engine,
                                                  std::uint32_t page_count, std::uint32_t aux_slots,
                                                  Memory memory = Memory::kPrivate);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // K of each layer, V of each layer, aux.
  const std::vector<Region>& regions() const { return regions_; }
  std::uint32_t page_count() const { return page_count_; }
  std::uint32_t pages_for(std::uint32_t tokens) const {
    return (tokens + page_size_tokens_ - 1) / page_size_tokens_;
  }
  // Where each K and then each V region has this page.
  std::vector<std::byte*> page(PageIndex index) const;

  // All or nothing.
  std::optional<std::vector<PageIndex>> take_pages(std::uint32_t count);
  std::optional<std::uint32_t> take_aux();
  // A page or slot that is not taken is refused and counted, because giving it to two owners would
  // mix their KV.
  void give_back(std::span<const PageIndex> pages);
  void give_back_aux(std::uint32_t slot);

  std::uint32_t free_pages() const { return free_pages_.load(std::memory_order_relaxed); }
  std::uint64_t taken_total() const { return taken_total_.load(std::memory_order_relaxed); }
  std::uint64_t returned_total() const { return returned_total_.load(std::memory_order_relaxed); }
  std::uint64_t double_returns() const { return double_returns_.load(std::memory_order_relaxed); }
  std::uint32_t free_aux() const { return free_aux_.load(std::memory_order_relaxed); }

 private:
  using FreeList =
      std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<std::uint32_t>>;

  PagePool(std::uint32_t page_count, std::uint32_t aux_slots, std::uint32_t page_size_tokens);
  Status map(Memory memory);
  std::byte* base() const { return shared_ ? shared_->base() : memory_; }

  const std::uint32_t page_count_;
  const std::uint32_t page_size_tokens_;
  std::optional<SharedPool> shared_;
  std::byte* memory_ = nullptr;  // private
  std::size_t memory_bytes_ = 0;
  std::vector<Region> regions_;
  FreeList free_list_;
  FreeList free_aux_list_;
  std::vector<bool> taken_;
  std::vector<bool> aux_taken_;
  std::atomic<std::uint32_t> free_pages_{0};
  std::atomic<std::uint32_t> free_aux_{0};
  std::atomic<std::uint64_t> taken_total_{0};
  std::atomic<std::uint64_t> returned_total_{0};
  std::atomic<std::uint64_t> double_returns_{0};
};

}  // namespace kvferry::serve
