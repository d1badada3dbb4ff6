// Prefill side of one room on one rank.
//
// Threads: methods of one sender are called from one thread at a time; different senders are free.
// No method waits. Errors: a call that does not fit the room's state fails it with kWrongState and
// returns that failure; everything else that goes wrong is seen by poll() and failure().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/kv_poll.h"
#include "kvferry/status.h"

namespace kvferry {

class KvManager;

namespace runtime {
class ManagerState;
struct StatusCell;
}  // namespace runtime

class KvSender {
 public:
  // Opens the room here. A second open with the same room and binding fails as kDuplicateRoom while
  // the first has no terminal status.
  KvSender(KvManager& manager, RoomId room, Binding binding);
  // As clear().
  ~KvSender();
  KvSender(const KvSender&) = delete;
  KvSender& operator=(const KvSender&) = delete;

  // How many pages will be sent in all (zero is allowed: aux only), and the aux slot of this rank
  // that holds the record (write_aux) by the time of the last send. -1: this rank sends no aux.
  Status init(std::uint32_t page_count, std::int64_t aux_slot);

  // Sends the next chunk: pages of this rank's regions, in prompt order; they go to the next pages
  // of the grant, past its decode prefix. The call that brings the sum to page_count is the last:
  // aux and state follow it (with page_count zero: one call with no pages). Ownership: the pages
  // belong to kvferry until take_released() hands them back; the engine may go on reading them.
  Status send(std::span<const PageIndex> pages, std::span<const std::uint32_t> state_slots = {});

  // A load. kWaitingForInput: every decode rank's grant is here.
  KvPoll poll() const;
  // Bytes of this room that are known to be at their target so far; a load.
  std::uint64_t landed_bytes() const;
  // Pages that decode already has (from its prefix cache); 0 before kWaitingForInput.
  std::uint32_t decode_prefix_pages() const;

  // Fails the room on all ranks at once with kAborted. Its pages come back later (rule 1).
  void abort(std::string_view reason = "aborted by the caller");
  // Drops the handle. An unfinished room is aborted; what the core owes to peers goes on.
  void clear();

  // First cause, once poll() is kFailed.
  std::optional<Failure> failure() const;
  // Names this handle in poll_many() and ReleasedPages; never reused, also not by a receiver.
  std::uint64_t id() const;

 private:
  std::shared_ptr<runtime::ManagerState> state_;
  std::shared_ptr<runtime::StatusCell> cell_;
};

}  // namespace kvferry
