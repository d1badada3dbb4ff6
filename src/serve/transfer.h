// What the schedulers need of the transfer layer. KvManager is behind it in a server; tests put a
// pair of pools in one process there.
//
// Threads: one scheduler's thread, except where noted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/kv_manager.h"
#include "kvferry/kv_poll.h"
#include "kvferry/status.h"
#include "serve/request.h"

namespace kvferry::serve {

// One KvSender; see there.
class PrefillRoom {
 public:
  virtual ~PrefillRoom() = default;
  virtual Status init(std::uint32_t page_count, std::uint32_t aux_slot) = 0;
  virtual Status send(std::span<const PageIndex> pages) = 0;
  virtual KvPoll poll() const = 0;
  virtual std::uint64_t landed_bytes() const = 0;
  virtual std::uint32_t decode_prefix_pages() const = 0;
  virtual void abort(std::string_view reason) = 0;
  virtual std::optional<Failure> failure() const = 0;
  virtual std::uint64_t id() const = 0;
};

// One KvReceiver; see there.
class DecodeRoom {
 public:
  virtual ~DecodeRoom() = default;
  virtual Status init(std::string bootstrap_address, std::string prefill_instance) = 0;
  virtual Status send_metadata(std::span<const PageIndex> pages, std::uint32_t aux_slot) = 0;
  virtual KvPoll poll() = 0;
  virtual void abort(std::string_view reason) = 0;
  virtual std::optional<Failure> failure() const = 0;
  virtual std::uint64_t id() const = 0;
};

class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual std::unique_ptr<PrefillRoom> open_prefill(RoomId room, Binding binding) = 0;
  virtual std::unique_ptr<DecodeRoom> open_decode(RoomId room, Binding binding) = 0;
  virtual void poll_many(std::span<const std::uint64_t> ids, std::span<KvPoll> statuses) const = 0;
  virtual std::vector<ReleasedPages> take_released() = 0;
  virtual int event_fd() const = 0;
  virtual void drain_event_fd() = 0;
  virtual Status write_aux(std::uint32_t aux_slot, RoomId room, Binding binding,
                           const AuxRecord& record) = 0;
  virtual Result<AuxRecord> read_aux(std::uint32_t aux_slot, RoomId room,
                                     Binding binding) const = 0;

  // Any thread.
  // This server will not take the request that the room is for: the other side's room fails with
  // the reason instead of waiting for its deadline. A room that is open here already goes on.
  virtual void refuse(const RoomFields& room, std::string_view reason) = 0;
  virtual std::vector<PairState> pairs() const = 0;
  virtual std::vector<MetricSample> metrics() const = 0;
  virtual std::string dump_status() const = 0;
  virtual std::vector<ReadinessCheck> readiness() const = 0;
};

// Over a manager that outlives the result.
std::unique_ptr<Transfer> make_kv_transfer(KvManager& manager);

}  // namespace kvferry::serve
