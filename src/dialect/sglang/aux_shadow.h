// Aux memory in SGLang's form: its prefill writes one item into each of several buffers for each
// room, where kvferry has one AuxRecord. The buffers lie here, under the slots' own numbers, and
// are what is registered with SGLang's prefill; when a room has succeeded there, deliver() makes
// the record out of them.
//
// Threads: all calls on one. Peers write into the buffers at any time, from outside of this
// process: so nothing that is read here is believed before it was copied, and the room number is
// what shows that the rest has come (SGLang writes it last).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dialect/sglang/aux_buffers.h"
#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

class AuxShadow {
 public:
  // aux: this rank's aux region, in host memory and alive as long as this. Fails with
  // kInvalidArgument.
  static Result<std::unique_ptr<AuxShadow>> make(const Region& aux, AuxBuffers buffers);

  std::vector<std::uint64_t> pointers() const;  // of the buffers, as registered
  // The buffers; they stay where they are as long as this.
  std::vector<std::span<std::byte>> memory();
  std::uint32_t slot_count() const { return aux_.item_count; }

  // Before the slot is granted: what an earlier room left there must not be taken for the next
  // one's.
  void clear(std::uint32_t slot);
  // 0: not written yet.
  std::uint64_t room_number(std::uint32_t slot) const;
  // One buffer's item that came in a message. False when there is no such buffer or slot, or the
  // item has another length.
  bool store(std::uint32_t buffer, std::uint32_t slot, std::span<const std::uint8_t> bytes);
  // Writes the record of the room into the aux region.
  void deliver(std::uint32_t slot, RoomId room, Binding binding);

 private:
  AuxShadow(const Region& aux, AuxBuffers buffers);
  std::span<std::byte> item(std::size_t buffer, std::uint32_t slot);
  std::span<const std::byte> item(std::size_t buffer, std::uint32_t slot) const;

  const Region aux_;
  const AuxBuffers buffers_;
  std::vector<std::vector<std::uint64_t>> memory_;  // of each buffer; words, for their alignment
};

}  // namespace kvferry::sglang
