// What happened to the rooms of the last minutes: a bounded ring that GET /v1/kvferry/rooms reads.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvferry/ids.h"
#include "kvferry/kv_args.h"

namespace kvferry::serve {

struct RoomStats {
  Role role = Role::kPrefill;
  RoomId room;
  Binding binding;
  std::string outcome = "running";  // "success", "failed"
  std::string failure;              // first cause
  std::string failure_code;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t pages = 0;
  std::uint64_t bytes = 0;  // of KV
  double queued_ms = 0;     // until pages were there
  // Prefill.
  double prefill_ms = 0;
  std::uint64_t landed_bytes_at_prefill_end = 0;
  bool first_page_before_prefill_end = false;
  double transfer_after_prefill_ms = 0;  // from the last chunk's end until the room's
  // end was seen, which waits for the chunk that is being computed
  // Decode.
  double transfer_ms = 0;     // from the grant to the room's end
  double first_token_ms = 0;  // from the request's arrival
  double import_ms = 0;
  std::uint32_t answer_tokens = 0;
};

class RoomLog {
 public:
  explicit RoomLog(std::size_t capacity = 1'024) : capacity_(capacity) {}

  // Replaces what is known of the same binding.
  void put(const RoomStats& stats);
  std::optional<RoomStats> find(Binding binding) const;
  std::vector<RoomStats> recent(std::size_t count) const;  // newest first

 private:
  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::deque<RoomStats> rooms_;
};

}  // namespace kvferry::serve
