// The aux region of this rank: where the record of a slot lies, and its bytes.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "kvferry/kv_args.h"
#include "kvferry/status.h"
#include "wire/aux_record.h"

namespace kvferry::runtime {

// Threads: any; two of them on one slot is the caller's mistake.
class AuxSlots {
 public:
  explicit AuxSlots(const KvArgs& args) : vocab_size_(args.vocab_size) {
    for (const Region& region : args.regions) {
      if (region.kind == RegionKind::kAux) {
        region_ = region;
      }
    }
  }

  std::uint32_t count() const { return region_.item_count; }

  Status write(std::uint32_t slot, RoomId room, Binding binding, const AuxRecord& record) {
    if (Status status = check(slot); !status) {
      return status;
    }
    wire::encode_aux(bytes(slot), room, binding, record);
    return {};
  }

  Result<AuxRecord> read(std::uint32_t slot, RoomId room, Binding binding) const {
    if (Status status = check(slot); !status) {
      return tl::unexpected(status.error());
    }
    return wire::decode_aux(bytes(slot), room, binding, vocab_size_);
  }

 private:
  Status check(std::uint32_t slot) const {
    if (slot >= region_.item_count) {
      return fail(FailureCode::kInvalidArgument,
                  fmt::format("aux slot {}: this rank has {}", slot, region_.item_count));
    }
    if (region_.memory != MemoryKind::kHost) {
      return fail(FailureCode::kInvalidArgument, "the aux region is not in host memory");
    }
    return {};
  }
  std::span<std::byte> bytes(std::uint32_t slot) const {
    return {region_.base + std::size_t{slot} * region_.item_bytes,
            static_cast<std::size_t>(region_.item_bytes)};
  }

  Region region_{};
  std::uint32_t vocab_size_;
};

}  // namespace kvferry::runtime
