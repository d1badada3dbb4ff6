// What a kvferry prefill rank knows of one rank of a stock SGLang decode server, whichever flavour
// it speaks: its registration and what it wants of a room, as far as either is of use here. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/layout_shape.h"
#include "dialect/sglang/messages.h"
#include "kvferry/status.h"

namespace kvferry::sglang {

// A name is one only within a flavour: Mooncake's are addresses, NIXL's are drawn.
using SessionName = std::pair<Flavour, std::string>;

// Equal registrations mean equal ranks. What only NIXL itself could use (its agent's metadata, the
// number of the GPU) is left out.
struct DecodeRank {
  SessionName name;  // of the transfer engine or, with NIXL, of the agent
  RankEndpoint endpoint;
  DecodeMemory memory;
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t dcp_size = 1;
  // Told in NIXL's flavour alone: pages that each KV buffer has, and how many buffers are called
  // device memory.
  std::optional<std::uint64_t> kv_pages;
  std::size_t vram_buffers = 0;

  Flavour flavour() const { return name.first; }
  friend bool operator==(const DecodeRank&, const DecodeRank&) = default;
};
DecodeRank decode_rank_of(const MooncakeRegistration& registration);
DecodeRank decode_rank_of(const NixlRegistration& registration);

struct RoomRequest {
  SessionName name;
  RoomTarget target;
  std::optional<std::uint32_t> aux_index;
  bool has_device_pages = false;
  bool is_dummy = false;  // nothing is to be written

  Flavour flavour() const { return name.first; }
};
RoomRequest room_request_of(const MooncakeMetadata& metadata);
RoomRequest room_request_of(const NixlMetadata& metadata);

// The decode rank's layout, as a kvferry rank in its place would tell it; its pools are as large as
// ours where it does not say. Fails with kLayoutMismatch when a prefill rank with our layout serves
// no room of it, and why: sizes of which neither divides the other, ranks that would write nothing,
// other items, state. Device memory is refused by its name, without a try: what a write to the
// host's side of such an address does is the driver's affair.
Result<LayoutShape> layout_of(const DecodeRank& rank, const LayoutShape& own);

}  // namespace kvferry::sglang
