// The aux slot's bytes: AuxRecord plus room, binding and a CRC32C. Little-endian, kAuxRecordBytes
// long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvferry/ids.h"
#include "kvferry/kv_args.h"
#include "kvferry/status.h"

namespace kvferry::wire {

// slot.size() >= kAuxRecordBytes; bytes past the record are zeroed.
void encode_aux(std::span<std::byte> slot, RoomId room, Binding binding, const AuxRecord& record);

// Fails with kAuxInvalid when length, CRC, room, binding or (vocab_size > 0) the token do not fit;
// the text says which, with both values.
Result<AuxRecord> decode_aux(std::span<const std::byte> slot, RoomId room, Binding binding,
                             std::uint32_t vocab_size);

// What a slot holds, whosever it is.
struct BoundAux {
  RoomId room;
  Binding binding;
  AuxRecord record;
};
// Fails with kAuxInvalid when length or CRC do not fit.
Result<BoundAux> read_aux(std::span<const std::byte> slot);

}  // namespace kvferry::wire
