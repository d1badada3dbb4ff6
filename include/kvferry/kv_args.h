// What one rank of an engine tells kvferry about itself once, at start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvferry/ids.h"

namespace kvferry {

enum class Role : std::uint8_t { kPrefill = 0, kDecode = 1 };
enum class DType : std::uint8_t {
  kU8 = 0,
  kF16 = 1,
  kBF16 = 2,
  kF32 = 3,
  kF8E4M3 = 4,
  kF8E5M2 = 5
};
enum class MemoryKind : std::uint8_t { kHost = 0, kDevice = 1 };

// What a region holds. kKey and kValue regions have one item per page; kOther is for layouts whose
// K and V are not apart (MLA); aux and state regions have one item per slot.
enum class RegionKind : std::uint8_t { kKey = 0, kValue = 1, kOther = 2, kAux = 3, kState = 4 };
// Whether such a region has one item per page.
constexpr bool holds_pages(RegionKind kind) {
  return kind != RegionKind::kAux && kind != RegionKind::kState;
}

std::string_view to_string(Role role);
std::string_view to_string(DType dtype);
std::string_view to_string(MemoryKind kind);
std::string_view to_string(RegionKind kind);
std::uint32_t dtype_bytes(DType dtype);

// What one rank may register.
inline constexpr std::size_t kMaxRegions = 4'096;

// Registered memory: item_count items of item_bytes each, back to back from base. The engine owns
// the memory and keeps it mapped until KvManager is destroyed.
struct Region {
  RegionKind kind = RegionKind::kKey;
  std::uint32_t layer = 0;  // global layer number; 0 for aux
  std::byte* base = nullptr;
  std::uint64_t item_bytes = 0;  // bytes of one page (or slot) in this region
  std::uint32_t item_count = 0;  // pages (or slots)
  MemoryKind memory = MemoryKind::kHost;
  // The memfd that base is mapped from, and where in it base lies (shared_pool.h makes one). It is
  // sealed against shrinking and new writable maps, and open until KvManager is destroyed. -1 for
  // other memory, which the shm transport can only read where the host allows process_vm_readv.
  int memory_fd = -1;
  std::uint64_t memory_fd_offset = 0;
};

// This process's place in its engine. tp splits heads, pp splits layers, dp is a whole replica.
struct RankCoordinates {
  std::uint32_t tp_rank = 0;
  std::uint32_t tp_size = 1;
  std::uint32_t pp_rank = 0;
  std::uint32_t pp_size = 1;
  std::uint32_t dp_rank = 0;
  std::uint32_t dp_size = 1;
  friend bool operator==(const RankCoordinates&, const RankCoordinates&) = default;
};

// Half-open ranges of what this rank holds.
struct LayerRange {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};
struct HeadSlice {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  friend bool operator==(const HeadSlice&, const HeadSlice&) = default;
};

// What must match for the bits to be equal, beyond the layout. A difference warns, and refuses the
// pair only with Options::require_identical.
struct Numerics {
  std::string kernel_library;  // for example "ggml-cpu-sapphirerapids"
  std::uint32_t threads = 0;
  std::uint32_t prefill_chunk_tokens = 0;
  std::string flags;  // whatever else the engine pins
  friend bool operator==(const Numerics&, const Numerics&) = default;
};

struct KvArgs {
  Role role = Role::kPrefill;
  std::string instance;        // name of the engine instance in the registry
  EngineEpoch engine_epoch{};  // equal on all ranks of one launch; 0: draw one (one rank only)
  RankCoordinates rank;

  std::string model_fingerprint;  // opaque; pairs with unequal ones are refused
  std::uint32_t page_size_tokens = 0;
  std::uint32_t total_layers = 0;
  std::uint32_t total_kv_heads = 0;
  std::uint32_t head_dim = 0;
  DType dtype = DType::kF16;
  LayerRange layers;             // held by this rank
  HeadSlice heads;               // held by this rank
  std::uint32_t vocab_size = 0;  // 0: the first token in aux is not checked

  // Order matters and is the same on both sides: the index is the RegionId. Item layout of K/V:
  // [page_size_tokens][heads of this rank][head_dim].
  std::vector<Region> regions;

  Numerics numerics;
};

// First token and side data of one room, written by prefill into its aux slot and read by decode
// after Success. Encoded size: kAuxRecordBytes (room, binding and a CRC32C are added by kvferry).
struct AuxRecord {
  std::int32_t first_token = -1;
  float first_logprob = 0.0F;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;
  friend bool operator==(const AuxRecord&, const AuxRecord&) = default;
};
inline constexpr std::uint32_t kAuxRecordBytes = 64;

}  // namespace kvferry
