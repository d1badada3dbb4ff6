// Decode side of one room on one rank.
//
// Threads and errors: as KvSender.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

class KvReceiver {
 public:
  // Opens the room here.
  KvReceiver(KvManager& manager, RoomId room, Binding binding);
  // As clear().
  ~KvReceiver();
  KvReceiver(const KvReceiver&) = delete;
  KvReceiver& operator=(const KvReceiver&) = delete;

  // Where the prefill ranks of this room are found: a registry (checked against the allow-list) and
  // the instance in it; an empty instance means the only one it lists. dp_rank chooses the replica.
  Status init(std::string bootstrap_address, std::string prefill_instance,
              std::uint32_t prefill_dp_rank = 0);

  // Grants pages to the prefill ranks. Page i of the prompt, past the prefix, lands in pages[i].
  // decode_prefix_tokens: prompt tokens that are here already, a multiple of the page size.
  // expected_grants: how many decode ranks grant to the same senders (all ranks of this engine).
  // May be called before kWaitingForInput; it is kept until then.
  // Ownership: pages, aux slot and state slots belong to kvferry from here on. They become the
  // caller's when poll() returns kSuccess, else they come back through take_released().
  Status send_metadata(std::span<const PageIndex> pages, std::int64_t aux_slot,
                       std::span<const std::uint32_t> state_slots = {},
                       std::uint32_t decode_prefix_tokens = 0, std::uint32_t expected_grants = 1);

  // A load. The first call that returns kSuccess passes the pages to the caller.
  KvPoll poll();

  // Fails the room on all ranks at once with kAborted; its pages stay in quarantine until fenced.
  void abort(std::string_view reason = "aborted by the caller");
  // Drops the handle: aborts an unfinished room; pages of a Success that was never read come back
  // through take_released().
  void clear();

  std::optional<Failure> failure() const;
  std::uint64_t id() const;
  // Which life of the room this is, drawn when its pages are granted; 0 until then.
  AttemptId attempt() const;

 private:
  std::shared_ptr<runtime::ManagerState> state_;
  std::shared_ptr<runtime::StatusCell> cell_;
};

}  // namespace kvferry
