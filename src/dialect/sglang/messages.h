// Every control message of SGLang's disaggregation (as SGLang 0.5.23 sends and reads them), as a
// plain value. On the wire each is one ZeroMQ multipart message over PUSH/PULL, without version,
// sender or authentication; codec.h translates. Field names follow SGLang's where the tree has no
// word of its own; units are in the names. docs/sglang_dialect.md lists the frames of each kind.
//
// Values are what a peer said, with the checks of the codec behind them and no others: addresses
// are not resolved, indices are not compared with any pool, and a number that fits its type may
// still name nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kvferry/ids.h"
#include "kvferry/kv_poll.h"

namespace kvferry::sglang {

// The transfer backend that both servers of a pair are started with; it decides the frames.
enum class Flavour : std::uint8_t { kMooncake, kNixl, kMori };
std::string_view to_string(Flavour flavour);

// SGLang's literal in frame 0 of a registration, where a room number would stand.
inline constexpr std::string_view kNoRoom = "None";
inline constexpr std::string_view kNixlGuard = "NixlMsgGuard";
inline constexpr std::string_view kMoriGuard = "MoriMsgGuard";

// Where a decode rank listens for what prefill tells it.
struct RankEndpoint {
  std::string ip;  // IPv6 without brackets
  std::uint16_t port = 0;
  friend bool operator==(const RankEndpoint&, const RankEndpoint&) = default;
};
std::string to_text(const RankEndpoint& endpoint);  // host:port, IPv6 in brackets

// Lists of lists: one list for each state component, in the order that both engines derive from the
// model. An empty outer list and a frame without bytes are the same.
template <typename T>
using PerComponent = std::vector<std::vector<T>>;

// The ring into which prefill stages chunks when attention TP sizes differ.
struct StagingRing {
  std::uint64_t pointer = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> slot_layers;  // Mooncake only
  friend bool operator==(const StagingRing&, const StagingRing&) = default;
};

// A decode rank's memory, as addresses in its process. Buffers of one list are in the order of
// SGLang's pools: K of every layer, then V of every layer (MLA: one buffer for each layer).
struct DecodeMemory {
  std::vector<std::uint64_t> kv_pointers;
  std::vector<std::uint64_t> aux_pointers;
  PerComponent<std::uint64_t> state_pointers;
  std::uint64_t kv_item_bytes = 0;              // of one page of buffer 0; 0: no KV buffer
  std::vector<std::uint64_t> kv_item_bytes_of;  // of each KV buffer; empty: not said
  PerComponent<std::uint32_t> state_item_bytes;
  PerComponent<std::uint32_t> state_dims;  // dimension along which a tensor is sliced
  std::vector<std::uint32_t> kv_layers;    // global layer of each KV buffer; empty: by position
  PerComponent<std::uint32_t> state_layers;
  StagingRing staging;  // pointer 0: none
  friend bool operator==(const DecodeMemory&, const DecodeMemory&) = default;
};

// decode -> prefill. Once for each connection, before the first metadata: who the decode rank is
// and where its memory lies. A second one with the same session replaces the first.
struct MooncakeRegistration {
  RankEndpoint endpoint;
  std::string session;  // of the transfer engine, host:port
  DecodeMemory memory;
  std::uint32_t tp_rank = 0;  // in the attention group
  std::uint32_t tp_size = 1;
  std::uint32_t dcp_size = 1;  // decode context parallelism
  std::uint32_t dcp_rank = 0;
  friend bool operator==(const MooncakeRegistration&, const MooncakeRegistration&) = default;
};

enum class NixlMemory : std::uint8_t { kVram, kDram };

// decode -> prefill, as above. A second one with the same agent is ignored by SGLang.
struct NixlRegistration {
  RankEndpoint endpoint;
  std::string agent;                         // name of the NIXL agent, a UUID
  std::vector<std::uint8_t> agent_metadata;  // opaque; for nixl's add_remote_agent
  DecodeMemory memory;
  std::uint32_t gpu = 0;
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 1;
  std::optional<std::uint64_t> kv_slots;    // pages of KV buffer 0
  std::vector<NixlMemory> kv_memory_kinds;  // of each KV buffer; empty: all VRAM
  PerComponent<std::uint64_t> state_bytes;  // of each whole state buffer
  std::uint32_t dcp_size = 1;
  std::uint32_t dcp_rank = 0;
  friend bool operator==(const NixlRegistration&, const NixlRegistration&) = default;
};

// What a decode rank wants of one prefill rank for one room, both flavours alike.
struct RoomTarget {
  RoomId room;
  RankEndpoint endpoint;
  std::vector<PageIndex> pages;  // after the decode-side prefix
  PerComponent<std::uint32_t> state_indices;
  std::uint32_t decode_ranks = 1;   // how many such messages this prefill rank is to expect
  std::uint64_t prefix_tokens = 0;  // already on decode
  friend bool operator==(const RoomTarget&, const RoomTarget&) = default;
};

// decode -> prefill, once for each request and target rank: the write permit.
struct MooncakeMetadata {
  RoomTarget target;
  std::string session;
  std::optional<std::uint32_t> aux_index;
  std::vector<PageIndex> device_pages;  // only where pages are of host memory (HiSparse)
  // Nothing is to be written; the rank only has to know the room. A full prefix hit has no pages,
  // but an aux index.
  bool is_dummy() const { return target.pages.empty() && !aux_index; }
  friend bool operator==(const MooncakeMetadata&, const MooncakeMetadata&) = default;
};

struct NixlMetadata {
  RoomTarget target;
  std::string agent;
  std::uint32_t aux_index = 0;  // named for dummies, too
  bool is_dummy = false;
  friend bool operator==(const NixlMetadata&, const NixlMetadata&) = default;
};

// prefill -> decode. kFailed and kSuccess end the room for this rank; kWaitingForInput says, under
// the allocation policy prefill_complete, that prefill is done and pages may be allocated.
struct RoomStatus {
  RoomId room;
  KvPoll status = KvPoll::kFailed;
  std::uint32_t prefill_rank = 0;  // rank_mapping.h: prefill_rank_id()
  std::string reason;              // never sent in Mooncake's flavour
  friend bool operator==(const RoomStatus&, const RoomStatus&) = default;
};

// decode -> prefill. A generation asks for an acknowledgement once nothing is written any more; it
// is there only when decode holds the pages until then.
struct AbortRoom {
  RoomId room;
  std::optional<RankEndpoint> endpoint;     // where the acknowledgement goes
  std::optional<std::uint64_t> generation;  // only with an endpoint
  friend bool operator==(const AbortRoom&, const AbortRoom&) = default;
};

// prefill -> decode. Two frames when prefill does not defer (it proves nothing), three from
// versions before 0.5.23, four from 0.5.23.
struct AbortAck {
  RoomId room;
  std::optional<std::uint32_t> prefill_rank;
  std::optional<std::uint64_t> generation;  // only with a rank
  friend bool operator==(const AbortAck&, const AbortAck&) = default;
};

// prefill -> decode. One aux buffer's item, where the transfer engine does not carry it.
struct AuxData {
  RoomId room;
  std::uint32_t buffer = 0;     // position in the registration's aux buffers
  std::uint32_t aux_index = 0;  // decode's slot
  std::vector<std::uint8_t> bytes;
  friend bool operator==(const AuxData&, const AuxData&) = default;
};

// prefill -> decode. A chunk lies in the staging ring.
struct ChunkReady {
  RoomId room;
  std::uint32_t chunk = 0;
  std::uint32_t first_page = 0;  // counted from the end of the decode-side prefix
  std::uint32_t page_count = 0;
  std::string writer;  // decode's session or agent, as prefill knows it
  std::optional<std::uint32_t> prefill_rank;
  friend bool operator==(const ChunkReady&, const ChunkReady&) = default;
};

// prefill -> decode. Asks for a place in the staging ring.
struct StagingRequest {
  RoomId room;
  std::uint32_t chunk = 0;
  std::uint32_t page_count = 0;
  std::string session;
  std::optional<std::uint32_t> pp_rank;
  friend bool operator==(const StagingRequest&, const StagingRequest&) = default;
};

// decode -> prefill. The place.
struct StagingResponse {
  static constexpr std::int64_t kNotAllocated = -1;
  static constexpr std::int64_t kOversized = -2;  // never fits; the room is to fail
  RoomId room;
  std::uint32_t chunk = 0;
  std::int64_t offset = kNotAllocated;  // in bytes from the ring's base
  std::int64_t round = 0;
  std::int64_t end = -1;
  std::string session;
  friend bool operator==(const StagingResponse&, const StagingResponse&) = default;
};

// decode -> prefill. Up to where the staging ring has been read.
struct Watermark {
  std::int64_t round = 0;
  std::int64_t tail = 0;
  std::string session;
  friend bool operator==(const Watermark&, const Watermark&) = default;
};

// decode -> prefill, policy prefill_complete only: where to say that prefill is done.
struct AwaitPrefill {
  RoomId room;
  RankEndpoint endpoint;
  friend bool operator==(const AwaitPrefill&, const AwaitPrefill&) = default;
};

using Message = std::variant<MooncakeRegistration, NixlRegistration, MooncakeMetadata, NixlMetadata,
                             RoomStatus, AbortRoom, AbortAck, AuxData, ChunkReady, StagingRequest,
                             StagingResponse, Watermark, AwaitPrefill>;

// Position in Message's list; the name is SGLang's tag in small letters, for logs and counters.
std::string_view kind_name(std::size_t kind);
std::string_view kind_name(const Message& message);

}  // namespace kvferry::sglang
