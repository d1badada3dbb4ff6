// The public status of one handle, and the table of all of them.
//
// The status, two flags and the handle's id share one atomic word, and the words of all handles lie
// packed in one array: a scheduler that polls 8,192 rooms each step reads 64 KiB in order. Whatever
// is longer (the failure's text, counts) lies in the cell beside it.
//
// Threads: every method may be called from any thread. A status is a load. The end of a room is one
// compare-and-swap (rule 11), made under the cell's mutex so that the failure's text is there for
// whoever sees the end.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kvferry/ids.h"
#include "kvferry/kv_poll.h"
#include "kvferry/status.h"
#include "runtime/change_list.h"

namespace kvferry::runtime {

enum class HandleKind : std::uint8_t { kSender, kReceiver };

// started = succeeded + failed + live at any time (R4); a refused open counts as started and
// failed.
struct RoomCounters {
  static constexpr std::size_t kCodes = 64;
  std::atomic<std::uint64_t> started{0};
  std::atomic<std::uint64_t> succeeded{0};
  std::array<std::atomic<std::uint64_t>, kCodes> failed{};  // by FailureCode
};

// What the caller's calls have done so far. Touched by the thread that uses the handle only.
struct CallState {
  bool opened = false;  // the core knows the handle
  bool initialized = false;
  bool metadata_given = false;
  bool last_sent = false;
  std::uint32_t page_count = 0;
  std::uint32_t pages_sent = 0;
};

struct StatusCell {
 public:
  // word: the handle's place in the table; null for a handle that found no place, which has its
  // own.
  StatusCell(std::uint64_t cell_id, HandleKind cell_kind, RoomId cell_room, Binding cell_binding,
             std::atomic<std::uint64_t>* word, RoomCounters& counters);

  const std::uint64_t id;
  const HandleKind kind;
  const RoomId room;
  const Binding binding;

  // kFailed once the handle was cleared.
  KvPoll load() const;
  // As load(); the first read of a receiver's kSuccess makes the pages the caller's.
  KvPoll read();
  // Moves a live status forward; false when it ended or is there already.
  bool advance(KvPoll status);
  // The end, once: true for the one caller that reached it. failure is set exactly for kFailed.
  bool end(KvPoll status, const std::optional<Failure>& failure);

  struct Cleared {
    bool first = false;           // false: the handle was cleared before
    bool ended = false;           // this call ended a live room with cause
    bool unread_success = false;  // a receiver's kSuccess that nobody read
  };
  Cleared clear(const Failure& cause);

  // First cause, once the status is kFailed; stays readable after clear().
  std::optional<Failure> failure() const;

  std::atomic<std::uint64_t> landed_bytes{0};
  std::atomic<std::uint32_t> prefix_pages{0};
  std::atomic<std::uint64_t> attempt{0};
  CallState calls;

 private:
  bool owns(std::uint64_t word) const;

  std::atomic<std::uint64_t> own_word_{0};
  std::atomic<std::uint64_t>& word_;
  RoomCounters& counters_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
};

// Ids come from one counter and are never reused; the low bits of an id are its slot, which is. A
// look- up compares the whole id, so an old id finds nothing in a slot that has a new owner.
class StatusTable {
 public:
  // At most max_handles places at a time.
  explicit StatusTable(std::uint32_t max_handles);

  // A cell with status kBootstrapping; without a free place one that is kFailed with kTableFull.
  std::shared_ptr<StatusCell> open(HandleKind kind, RoomId room, Binding binding);
  // Frees the place. Called once nothing that is queued names the id any more.
  void release(std::uint64_t id);

  std::shared_ptr<StatusCell> find(std::uint64_t id) const;
  // As find() without lock and count, for the one thread that calls release() and that heard of the
  // id from who opened it; the cell stays at least until that thread releases it.
  StatusCell* find_held(std::uint64_t id) const;
  // As StatusCell::load() and read(), without touching the cell.
  KvPoll read(std::uint64_t id);
  void read_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses);

  // Which handles have a new status. Filled by whoever changes them; fail_all() does it itself.
  ChangeList& changes() { return changes_; }

  // Ends every live room with this cause.
  void fail_all(const Failure& cause);

  const RoomCounters& counters() const { return counters_; }
  std::uint32_t open_handles() const;

 private:
  struct alignas(64) Shard {
    mutable std::mutex mutex;
  };
  static constexpr std::size_t kShards = 64;

  std::size_t slot_of(std::uint64_t id) const { return id & slot_mask_; }
  Shard& shard_of(std::size_t slot) const { return shards_[slot % kShards]; }

  const std::uint32_t max_handles_;
  const std::uint64_t slot_mask_;
  RoomCounters counters_;
  ChangeList changes_;
  std::vector<std::atomic<std::uint64_t>> words_;
  std::vector<std::shared_ptr<StatusCell>> cells_;  // each under the shard of its slot
  mutable std::array<Shard, kShards> shards_;

  mutable std::mutex open_mutex_;
  std::uint64_t next_id_ = 1;
  std::uint32_t open_handles_ = 0;
};

}  // namespace kvferry::runtime
