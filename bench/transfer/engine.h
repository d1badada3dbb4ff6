// The two ends of what is measured: a transport, or a reference. Each worker keeps one end of every
// engine, over the same pools.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "bench/transfer/block.h"
#include "bench/transfer/channel.h"
#include "bench/transfer/measurement.h"

namespace kvferry::bench {

// The names of the references.
inline constexpr std::string_view kMemcpyName = "memcpy";
inline constexpr std::string_view kStreamName = "raw-stream";

// Behind a transport's name: its writes carry digests, and it is compared with itself without.
inline constexpr std::string_view kDigestsSuffix = "+digests";

// How long a worker waits for the other one before it calls the run failed.
inline constexpr std::chrono::milliseconds kPatience{20'000};

// What a worker is told once. Crosses a channel as it is.
struct WorkerSetup {
  std::uint64_t pool_bytes = 0;
  std::int32_t core = -1;              // -1: not pinned
  std::uint32_t lanes_per_peer = 0;    // 0: as the transport is made
  std::uint32_t receive_threads = 0;   // 0: as the transport is made
  std::uint32_t huge = 0;              // HugePages
  std::uint32_t write_timeout_ms = 0;  // 0: as the transport is made
  std::uint32_t page_digests = 0;      // 1: each write carries a digest of its bytes
  std::uint32_t missing_guard = 0;     // RuntimeGuard; only a build of the lab can miss one
  std::array<char, 64> host{};         // of the target, to bind and to reach
  std::array<char, 256> engines{};     // separated by commas
  // Network namespaces (names of `ip netns`) that the two enter; empty: the bench's own.
  std::array<char, 64> source_namespace{};
  std::array<char, 64> target_namespace{};
};

enum class HugePages : std::uint32_t {
  kNone,
  kTransparent,  // the target's pool, as the kernel can
  kReserved      // the source's pool from the huge pages set aside, the target's transparent
};

// A worker's own pool. The target also sees the source's, read-only.
struct Pool {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;                 // of pages; the aux area lies behind them
  int memory_fd = -1;                      // source
  const std::byte* source_base = nullptr;  // target
};

class SourceEngine {
 public:
  virtual ~SourceEngine() = default;
  // Anew for each block. Both ends are asked at the same time and may talk over the channel.
  virtual Status prepare(const Block& block, Channel& target) = 0;
  // Serves one run of the target, until its kEnd. A plain run whose writes did not all land fails.
  virtual Result<PostResult> run(const RunOrder& order, Channel& target) = 0;
};

class TargetEngine {
 public:
  virtual ~TargetEngine() = default;
  virtual Status prepare(const Block& block, Channel& source) = 0;
  // Fails when a page that was checked holds anything but its source page's bytes.
  virtual Result<RunResult> run(const RunOrder& order, Channel& source) = 0;
  // Of the transport's address blob; for who wants to knock at its doors.
  virtual std::string blob() const { return {}; }
};

}  // namespace kvferry::bench
